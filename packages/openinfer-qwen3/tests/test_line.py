import json
import subprocess
import sys

import pytest

from openinfer_engine import (
    CheckpointNotFound,
    Claim,
    EngineOptions,
    LaunchSpec,
    OptionRejected,
    Refusal,
    detect_line,
    read_config,
)
from openinfer_qwen3 import LINE


@pytest.fixture
def folder(checkpoint):
    return checkpoint("gqa2-d64-untied")


@pytest.fixture
def spec(folder):
    def make(*, model_path=folder, line_options=None, **engine):
        return LaunchSpec(
            model_path=str(model_path),
            model_line="qwen3",
            engine=EngineOptions(**engine),
            line_options=line_options or {},
        )

    return make


def test_it_claims_its_checkpoints_and_refuses_others_by_field(folder):
    config = read_config(folder)
    assert LINE.probe(config) == Claim("Qwen3ForCausalLM")
    for field, value in (
        ("architectures", ["LlamaForCausalLM"]),
        ("quantization_config", {"quant_method": "fp8"}),
        ("use_sliding_window", True),
        ("rope_scaling", {"rope_type": "longrope"}),
        ("num_hidden_layers", None),
    ):
        answer = LINE.probe({**config, field: value})
        assert isinstance(answer, Refusal)
        assert field in answer.reason
    assert isinstance(LINE.probe({}), Refusal)


def test_it_is_installed(folder):
    assert detect_line(read_config(folder)).name == "qwen3"


def test_what_is_planned_when_nothing_is_said(spec):
    plan = LINE.plan(spec(device="cpu"))
    assert (plan.device, plan.dtype) == ("cpu", "float32")
    assert (plan.max_model_len, plan.vocab_size) == (512, 320)
    assert plan.max_num_batched_tokens >= plan.max_num_seqs
    assert plan.eos_token_ids == (0, 2)  # config.json and generation_config.json together
    gpu = LINE.plan(spec(device="cuda"))
    assert gpu.max_num_batched_tokens > plan.max_num_batched_tokens


def test_what_is_asked_for_is_taken(spec, checkpoint):
    plan = LINE.plan(
        spec(
            model_path=checkpoint("gqa4-d128-bf16"),
            max_model_len=100,
            max_num_seqs=700,
            dtype="float16",
            device="cpu",
        )
    )
    assert (plan.max_model_len, plan.max_num_seqs, plan.dtype) == (100, 700, "float16")
    assert plan.max_num_batched_tokens == 700
    few = LINE.plan(spec(max_num_batched_tokens=7, device="cpu"))
    assert (few.max_num_seqs, few.max_num_batched_tokens) == (7, 7)
    bfloat16 = spec(model_path=checkpoint("gqa4-d128-bf16"))
    assert LINE.plan(bfloat16).dtype == "bfloat16"


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("tensor_parallel_size", 2, "one server per GPU"),
        ("max_model_len", 513, "max_position_embeddings = 512"),
        ("max_model_len", 0, "at least 1"),
        ("max_num_seqs", 0, "at least 1"),
        ("max_num_batched_tokens", -1, "at least 1"),
        ("block_size", 0, "at least 1"),
        ("kv_cache_bytes", 0, "at least 1"),
        ("num_threads", 0, "at least 1"),
        ("gpu_memory_utilization", 1.5, "must be in"),
        ("tensor_parallel_size", 0, "at least 1"),
    ],
)
def test_an_option_that_is_not_honoured_is_named(spec, option, value, words):
    with pytest.raises(OptionRejected, match=words) as error:
        LINE.plan(spec(**{option: value}))
    assert error.value.option == option


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantization_is_refused_on_a_gpu(spec, quantization):
    words = f"{quantization} is not yet on CUDA; leave out --quantization"
    with pytest.raises(OptionRejected, match=words) as error:
        LINE.plan(spec(device="cuda", quantization=quantization))
    assert error.value.option == "quantization"
    options = {"device": "cpu", "dtype": "bfloat16", "quantization": quantization}
    assert LINE.plan(spec(**options)).device == "cpu"


def test_int8_of_another_dtype_names_both_flags(spec):
    words = "the dtype is float32; take --dtype bfloat16, or leave out --quantization"
    with pytest.raises(OptionRejected, match=words) as error:
        LINE.plan(spec(device="cpu", dtype="float32", quantization="int8"))
    assert error.value.option == "quantization"
    assert LINE.plan(spec(device="cpu", dtype="float32", quantization="int4")).dtype == "float32"


def test_a_share_of_a_gpus_memory_is_refused_on_a_cpu(spec):
    with pytest.raises(OptionRejected, match="has no effect on a CPU") as error:
        LINE.plan(spec(device="cpu", gpu_memory_utilization=0.5))
    assert error.value.option == "gpu_memory_utilization"
    assert LINE.plan(spec(device="cuda", gpu_memory_utilization=0.5)).device == "cuda"


def test_fewer_tokens_than_slots_are_refused(spec):
    with pytest.raises(OptionRejected, match="below max_num_seqs = 9"):
        LINE.plan(spec(max_num_seqs=9, max_num_batched_tokens=8))


@pytest.mark.parametrize("options", [{"no_such": 1}, {"attention_backend": "magic"}])
def test_options_of_its_own_are_checked(spec, options):
    with pytest.raises(OptionRejected) as error:
        LINE.plan(spec(line_options=options))
    assert error.value.option == next(iter(options))


def test_a_folder_without_a_checkpoint(spec, tmp_path):
    with pytest.raises(CheckpointNotFound):
        LINE.plan(spec(model_path=tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Other"]}))
    with pytest.raises(OptionRejected, match="architectures"):
        LINE.plan(spec(model_path=tmp_path))


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_it_launches_with_the_backend_asked_for(spec, backend):
    executor = LINE.launch(
        spec(device="cpu", num_threads=1, line_options={"attention_backend": backend})
    )
    assert executor.info.vocab_size == 320
    executor.close()


def test_the_reference_runs_layers_as_they_are_written(spec):
    for backend, is_fused in (("reference", False), ("torch", True)):
        executor = LINE.launch(
            spec(device="cpu", num_threads=1, line_options={"attention_backend": backend})
        )
        assert all((layer.fused is not None) == is_fused for layer in executor._model.layers)
        executor.close()


def test_a_backend_that_cannot_run_here_is_refused_by_its_flag(spec, monkeypatch):
    # Tests of kernels in this process may have switched on Triton's interpreter, which runs here.
    monkeypatch.setattr("triton.knobs.runtime.interpret", False)
    options = {"attention_backend": "triton"}
    with pytest.raises(OptionRejected, match="CUDA") as error:
        LINE.launch(spec(device="cpu", num_threads=1, line_options=options))
    assert "--attention-backend" in str(error.value)


def test_probe_and_plan_need_no_torch(folder):
    program = f"""
import sys
sys.modules["torch"] = None
from openinfer_engine import EngineOptions, LaunchSpec, read_config
from openinfer_qwen3 import LINE
folder = {str(folder)!r}
print(LINE.probe(read_config(folder)).architecture)
spec = LaunchSpec(model_path=folder, model_line="qwen3", engine=EngineOptions(device="cpu"))
print(LINE.plan(spec).max_model_len, LINE.options())
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split()[:2] == ["Qwen3ForCausalLM", "512"]


@pytest.fixture
def copy(folder, tmp_path):
    """Copies the configuration of `folder`, with changes, beside a given generation_config.json."""

    def make(generation: object, **config):
        (tmp_path / "config.json").write_text(json.dumps(read_config(folder) | config))
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
        return tmp_path

    return make


def test_an_end_that_no_token_can_be_is_none(spec, copy):
    path = copy({"eos_token_id": [7, -1]}, eos_token_id=None)
    assert LINE.plan(spec(model_path=path)).eos_token_ids == (7,)


@pytest.mark.parametrize("generation", [[], 3, {"eos_token_id": "2"}, {"eos_token_id": [True]}])
def test_an_unsound_generation_config_is_named(spec, copy, generation):
    with pytest.raises(OptionRejected, match="generation_config"):
        LINE.plan(spec(model_path=copy(generation)))
