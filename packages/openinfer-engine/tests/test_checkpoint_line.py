"""The toolkit of model lines: strict reading, rope, the plan, and a whole line in few lines."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from openinfer_engine import (
    CheckpointLine,
    Claim,
    ConfigReader,
    EngineOptions,
    Executor,
    LaunchSpec,
    ModelLine,
    OptionRejected,
    Refusal,
    RopeConfig,
    UnsupportedConfig,
    detect_line,
    read_rope,
)


@dataclass(frozen=True)
class ToyConfig:
    """A Llama-like model: what its file needs, read from config.json."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    max_position: int
    rope: RopeConfig
    qkv_bias: bool
    dtype: str | None


class ToyOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    speed: int = 1


class ToyLine(CheckpointLine[ToyConfig]):
    name = "toy"
    options = ToyOptions

    def read(self, config: Mapping[str, Any], /) -> ToyConfig:
        reader = ConfigReader(config)
        architecture = reader.architecture("ToyForCausalLM", "Toy2ForCausalLM")
        reader.refuse_quantized()
        reader.refuse_other("hidden_act", "silu")
        reader.refuse_windows(num_layers := reader.count("num_hidden_layers"))
        return ToyConfig(
            vocab_size=reader.count("vocab_size"),
            hidden_size=reader.count("hidden_size"),
            num_layers=num_layers,
            max_position=reader.count("max_position_embeddings"),
            rope=read_rope(reader),
            qkv_bias=architecture == "Toy2ForCausalLM" or reader.flag("attention_bias"),
            dtype=reader.dtype(),
        )

    def launch(self, spec: LaunchSpec, /) -> Executor:
        raise NotImplementedError


LINE: ModelLine = ToyLine()
CONFIG: dict[str, Any] = {
    "architectures": ["ToyForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "max_position_embeddings": 512,
    "rope_theta": 10_000,
    "eos_token_id": 2,
}


def _plan(folder: Path, line_options: dict[str, Any] | None = None, **options: Any) -> Any:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    spec = LaunchSpec(
        model_path=str(folder),
        model_line="toy",
        engine=EngineOptions(**{"device": "cpu", **options}),
        line_options=line_options or {},
    )
    return LINE.plan(spec)


def test_a_line_claims_what_it_reads() -> None:
    assert LINE.probe(CONFIG) == Claim("ToyForCausalLM")
    assert detect_line(CONFIG, {"toy": LINE}) is LINE
    biased = ToyLine().read({**CONFIG, "architectures": ["Toy2ForCausalLM"]})
    assert (biased.qkv_bias, ToyLine().read(CONFIG).qkv_bias) == (True, False)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("architectures", ["OtherForCausalLM"]),
        ("architectures", None),
        ("hidden_size", "64"),
        ("hidden_size", True),
        ("hidden_size", 0),
        ("vocab_size", None),
        ("hidden_act", "gelu"),
        ("attention_bias", "no"),
        ("quantization_config", {"quant_method": "awq"}),
        ("use_sliding_window", True),
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("is_causal", False),
        ("rope_theta", -1.0),
        ("torch_dtype", "int3"),
    ],
)
def test_an_unsupported_field_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(UnsupportedConfig) as caught:
        ToyLine().read({**CONFIG, field: value})
    assert caught.value.field == field
    answer = LINE.probe({**CONFIG, field: value})
    assert isinstance(answer, Refusal)
    assert field in answer.reason


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ("default", 10_000.0, 512, {})),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, ("linear", 1e4, 512, {"factor": 2.0})),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4, "truncate": False,
                              "original_max_position_embeddings": 128}},
            ("yarn", 1e4, 128, {"factor": 4.0, "truncate": False}),
        ),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8,
                                 "low_freq_factor": 1, "high_freq_factor": 4}},
            ("llama3", 5e5, 512,
             {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}),
        ),
    ],
)  # fmt: skip
def test_rope_is_read_in_both_spellings(fields: dict[str, Any], expected: tuple[Any, ...]) -> None:
    rope = read_rope(ConfigReader({**CONFIG, **fields}))
    assert (rope.type, rope.theta, rope.original_max_position, rope.options) == expected


@pytest.mark.parametrize(
    ("scaling", "field"),
    [
        ({"rope_type": "longrope"}, "rope_type"),
        ({"rope_type": ["yarn"]}, "rope_type"),
        ({"rope_type": "linear"}, "factor"),
        ({"rope_type": "yarn", "factor": "4"}, "factor"),
        ({"rope_type": "yarn", "factor": 4, "mscale": 1}, "mscale"),
        ({"rope_type": "yarn", "factor": 4, "truncate": "no"}, "truncate"),
        ({"rope_type": "llama3", "factor": 4, "low_freq_factor": 2, "high_freq_factor": 2},
         "high_freq_factor"),
    ],
)  # fmt: skip
def test_an_unsupported_rope_is_refused_by_name(scaling: dict[str, Any], field: str) -> None:
    with pytest.raises(UnsupportedConfig) as caught:
        read_rope(ConfigReader({**CONFIG, "rope_scaling": scaling}))
    assert caught.value.field == f"rope_scaling.{field}"


def test_the_plan_follows_from_options_and_facts(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, -1]}')
    plan = _plan(tmp_path)
    assert (plan.device, plan.dtype, plan.vocab_size) == ("cpu", "float32", 320)
    assert (plan.max_model_len, plan.eos_token_ids) == (512, (0, 2))
    assert plan.max_num_batched_tokens >= plan.max_num_seqs
    wanted = _plan(tmp_path, max_model_len=100, max_num_seqs=700, dtype="bfloat16")
    assert (wanted.max_model_len, wanted.max_num_seqs, wanted.dtype) == (100, 700, "bfloat16")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_model_len", 513),
        ("max_num_seqs", 0),
        ("tensor_parallel_size", 2),
        ("gpu_memory_utilization", 0.5),
        ("gpu_memory_utilization", 1.5),
        ("max_num_batched_tokens", -1),
        ("quantization", "int8"),  # computes in bfloat16, and the model is float32
    ],
)
def test_an_option_that_cannot_be_honoured_is_named(
    tmp_path: Path, option: str, value: Any
) -> None:
    with pytest.raises(OptionRejected) as caught:
        _plan(tmp_path, **{option: value})
    assert caught.value.option == option


def test_the_device_is_a_gpu_where_there_is_a_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for has_driver in (True, False):
        monkeypatch.setattr(
            "openinfer_engine.lines._serve_plan._has_nvidia_driver", lambda has=has_driver: has
        )
        options = {"device": "auto", "dtype": "bfloat16", "quantization": "int8"}
        if has_driver:
            with pytest.raises(OptionRejected, match="not yet on CUDA"):
                _plan(tmp_path, **options)
        else:
            assert _plan(tmp_path, **options).device == "auto"


@pytest.mark.parametrize("line_options", [{"speed": "fast"}, {"hurry": 1}])
def test_an_option_of_the_line_is_checked(tmp_path: Path, line_options: dict[str, Any]) -> None:
    with pytest.raises(OptionRejected) as caught:
        _plan(tmp_path, line_options)
    assert caught.value.option == next(iter(line_options))


def test_a_checkpoint_of_another_line_is_refused_when_planned(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "architectures": ["Other"]}))
    spec = LaunchSpec(model_path=str(tmp_path), model_line="toy")
    with pytest.raises(OptionRejected, match="architectures") as caught:
        LINE.plan(spec)
    assert caught.value.option == "model"
