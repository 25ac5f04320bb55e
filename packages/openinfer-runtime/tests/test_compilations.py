"""With empty caches, on a machine with a GPU: no request waits for a compiler.

pytest -m gpu packages/openinfer-runtime/tests/test_compilations.py
"""

import os
import subprocess
import sys

import pytest
import torch

_SERVE = """
import logging, sys
import numpy as np
import torch
from openinfer_contract import (
    Finished, GenerateRequest, LogprobOptions, PromptLogprobOptions, Sampling, StopRules, pack_ids,
)
from openinfer_engine import EngineOptions, LaunchSpec, assemble
from openinfer_kernels import RMSNormSpec, plan_rms_norm
from openinfer_qwen3 import LINE

logging.basicConfig(level=logging.INFO)
options = EngineOptions(device="cuda", dtype="bfloat16", gpu_memory_utilization=0.3)
executor = LINE.launch(LaunchSpec(model_path=sys.argv[1], model_line="qwen3", engine=options))
loop = assemble(executor, options, model_line="qwen3")
top, processed = LogprobOptions(num_top=2), LogprobOptions(num_top=2, mode="processed")
wishes = (
    {},
    {"sampling": Sampling(top_k=3)},
    {"sampling": Sampling(repetition_penalty=2.0), "logprobs": top},
    {"sampling": Sampling(top_p=0.5), "logprobs": processed},
    {"sampling": Sampling(min_p=0.1, bad_words=(pack_ids([3]),))},
    {"prompt_logprobs": PromptLogprobOptions()},
)
generator, ends = np.random.default_rng(1), []
for wave in (1, 2, 7, 33):
    for index in range(wave):
        request = GenerateRequest(
            request_id=f"{wave}-{index}",
            prompt_token_ids=pack_ids(generator.integers(3, 300, generator.integers(1, 120))),
            stop=StopRules(max_tokens=int(generator.integers(1, 9)), ignore_eos=True),
            **wishes[generator.integers(len(wishes))],
        )
        loop.submit(request, lambda event: event.end and ends.append(event.end))
        loop.step()
    while loop.has_work:
        loop.step()
assert len(ends) == 43 and all(isinstance(end, Finished) for end in ends), ends
print(loop.load().num_compilations)
# A norm that no step launches is compiled now, and counted.
spec = RMSNormSpec(hidden_size=48, eps=1e-6, dtype=torch.bfloat16)
x = torch.ones(2, 48, dtype=torch.bfloat16, device="cuda")
plan_rms_norm(spec, "cuda", "triton")(x, x[0])
print(loop.load().num_compilations)
"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_with_empty_caches_nothing_is_compiled_after_ready(checkpoint, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _SERVE, str(checkpoint("gqa4-d128-tied"))],
        capture_output=True,
        text=True,
        env=os.environ | {"TRITON_CACHE_DIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "1"], done.stderr
    assert "kernels compiled in" in done.stderr
