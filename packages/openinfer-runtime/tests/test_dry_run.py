"""A dry run lists every kernel that real steps launch; these run in Triton's interpreter."""

import json
import os
import subprocess
import sys

import pytest

_DRY = """
import json, sys
import torch
import openinfer_runtime
from openinfer_engine import EngineOptions, LaunchSpec
from openinfer_kernels import Gpu
from openinfer_kernels.compile._noted_kernels import note_launches
from openinfer_kernels.compile._torch_compiler import stand_in_for_torch_compiler
from openinfer_qwen3 import LINE
from openinfer_runtime.startup._kernels_ahead import launch_dry


def launch(spec, plan, build):
    options = openinfer_runtime.BuildOptions(
        device=torch.device("cuda"), dtype=torch.float32, block_size=16, max_model_len=128
    )
    builds = []
    stand_in_for_torch_compiler()
    note_launches(Gpu(arch=80, num_multiprocessors=108), builds.append)
    launch_dry(spec, plan, build, options)
    lines = {json.dumps([build.name, dict(build.arguments)], sort_keys=True) for build in builds}
    print("\\n".join(lines))
    assert "sympy.core" not in sys.modules


openinfer_runtime.launch_torch = launch
options = EngineOptions(device="cuda", **json.loads(sys.argv[2]))
LINE.launch(LaunchSpec(model_path=sys.argv[1], model_line="qwen3", engine=options))
"""

_REAL = """
import inspect, json, sys
import torch
import triton.language as tl
from triton._utils import type_canonicalisation_dict
from triton.runtime.interpreter import InterpretedFunction

from openinfer_kernels.dispatch import find_op, op_names
from openinfer_contract import (
    Finished, GenerateRequest, LogprobOptions, PromptLogprobOptions, Sampling, StopRules, pack_ids,
)
from openinfer_engine import EngineOptions, LaunchSpec, assemble
from openinfer_qwen3 import LINE
from openinfer_runtime import TorchExecutor

for order in (find_op(name).order for name in op_names()):
    order["cpu"] = order["cuda"]
kernels, run = set(), InterpretedFunction.run


def compiled_for(kernel, name, value):
    \"\"\"What Triton compiles a kernel for, see `NotedKernel.arguments`.\"\"\"
    is_special = name not in (kernel.kwargs["do_not_specialize"] or ())
    is_checked = is_special and name not in (kernel.kwargs["do_not_specialize_on_alignment"] or ())
    if value is None or (is_special and type(value) is int and value == 1):
        return str(value)
    if isinstance(value, float):
        return "fp32"
    if isinstance(value, int):
        return ("i32" if -(2**31) <= value < 2**31 else "i64") + "/16" * (
            is_checked and value % 16 == 0
        )
    kind = "*" + type_canonicalisation_dict[str(value.dtype).removeprefix("torch.")]
    return kind + "/16" * (is_checked and value.data_ptr() % 16 == 0)


def note(self, *arguments, grid, warmup, **options):
    parameters = inspect.signature(self.fn).parameters
    given = {name: value for name, value in options.items() if name in parameters}
    bound = inspect.signature(self.fn).bind(*arguments, **given).arguments
    constants = {name for name, of in parameters.items() if of.annotation is tl.constexpr}
    compiled = {
        name: value if name in constants else compiled_for(self, name, value)
        for name, value in bound.items()
    }
    kernels.add(json.dumps([self.fn.__name__, compiled], sort_keys=True))
    # Results need not be right, but tokens must be ids of the vocabulary.
    if self.fn.__name__ not in ("_advance_rows_kernel", "block_kernel", "row_kernel"):
        return None
    return run(self, *arguments, grid=grid, warmup=warmup, **options)


InterpretedFunction.run = note
options = EngineOptions(device="cpu", num_threads=1, **json.loads(sys.argv[2]))
old = LINE.launch(LaunchSpec(model_path=sys.argv[1], model_line="qwen3", engine=options))
top = LogprobOptions(num_top=1)
processed = LogprobOptions(num_top=1, mode="processed")
wishes = (
    {"sampling": Sampling(top_k=3)},
    {"sampling": Sampling(repetition_penalty=2.0), "logprobs": top},
    {"sampling": Sampling(top_p=0.5), "logprobs": processed},
    {"prompt_logprobs": PromptLogprobOptions()},
)
requests = [
    GenerateRequest(
        request_id=str(index),
        prompt_token_ids=pack_ids(range(length)),
        stop=StopRules(max_tokens=2 if length == 50 else 1, ignore_eos=True),
        **wish,
    )
    for index, (length, wish) in enumerate([*((3, wish) for wish in wishes), (50, {})])
]
executor = TorchExecutor(old._model, old._cache, old.info, lambda work: work)
loop = assemble(executor, options, model_line="qwen3")
ends = []
for request in requests:
    loop.submit(request, lambda e: isinstance(e.end, Finished) and ends.append(e))
while loop.has_work:
    loop.step()
print("\\n".join(kernels))
"""


def _run(script, folder, options, **environment):
    inherited = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-c", script, str(folder), json.dumps(options)],
        capture_output=True,
        text=True,
        env=inherited | environment,
    )


def _kernels(*arguments, **environment):
    done = _run(*arguments, **environment)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines())


@pytest.mark.long
def test_a_dry_run_notes_every_kernel_that_steps_launch(checkpoint):
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 48, "max_model_len": 128}
    folder = checkpoint()
    noted = _kernels(_DRY, folder, options)
    launched = _kernels(_REAL, folder, options, TRITON_INTERPRET="1")
    assert len(launched) > 10
    assert launched <= noted, "\n".join(sorted(launched - noted))


@pytest.mark.long
@pytest.mark.parametrize("method", ["sample", "draw_captured"])
def test_a_dry_run_that_fails_says_so(checkpoint, method):
    """Otherwise an incomplete list of kernels would be stored as a complete one."""
    broken = f"""
from openinfer_sampler import Sampler

def fail(*arguments, **options):
    raise ValueError("no draw")

Sampler.{method} = fail
"""
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 48, "max_model_len": 128}
    done = _run(broken + _DRY, checkpoint(), options)
    assert done.returncode != 0
    assert "no draw" in done.stderr
