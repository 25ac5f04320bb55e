"""The package without Triton, as on macOS, and with a Triton that has another Gluon."""

import os
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


_WITHOUT_GLUON = """
import sys

import triton

sys.modules["triton.experimental.gluon"] = None
triton.__version__ = "3.9.0"

import torch

import openinfer_kernels as kernels
from openinfer_kernels.compile._noted_kernels import note_launches

linear = kernels.LinearSpec(in_features=4096, out_features=2560, dtype=torch.bfloat16)
fused = kernels.FusedLinearSpec(linear=linear, adds_residual=True)
attention = kernels.PagedAttentionSpec(
    num_heads=32, num_kv_heads=8, head_dim=128, block_size=16, scale=1.0, dtype=torch.bfloat16
)
note_launches(kernels.Gpu(arch=90, num_multiprocessors=132), lambda kernel: None)
assert kernels.plan_fused_linear(fused, "meta").__module__.endswith("_triton")
assert kernels.plan_paged_attention(attention, "meta").__module__.endswith("_triton")
for report in kernels.describe("meta", {"fused_linear": fused, "paged_attention": attention}):
    if report.op in ("fused_linear", "paged_attention"):
        reasons = [r.why_not for r in report.regimes if r.kernel.startswith("gluon") and r.why_not]
        assert any("Triton 3.6" in reason for reason in reasons), report
"""


def test_a_triton_with_another_gluon_runs_triton_kernels_and_the_report_says_so():
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_GLUON], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
