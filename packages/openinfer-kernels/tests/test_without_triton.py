"""Triton is for Linux: elsewhere everything but GPU kernels works."""

import subprocess
import sys

_SCRIPT = """
import sys

sys.modules["triton"] = None

import torch

import openinfer_kernels as kernels

spec = kernels.SiluAndMulSpec(intermediate_size=8, dtype=torch.float32)
run = kernels.plan_silu_and_mul(spec, "cpu", "torch")
assert run(torch.zeros(2, 16)).tolist() == [[0.0] * 8] * 2
assert kernels.plan_silu_and_mul(spec, "meta").__module__.endswith("_torch")
(report,) = (each for each in kernels.describe("cpu") if each.op == "silu_and_mul")
assert report.unavailable["triton"] == "the package 'triton' is not installed"
assert kernels.kernel_folder("cuda") is None
assert kernels.num_compiled_kernels() == 0
"""


def test_the_package_is_imported_and_plans_without_triton():
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
