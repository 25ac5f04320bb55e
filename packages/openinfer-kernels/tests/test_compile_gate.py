"""The compile gate, on few kernels; CI runs `python -m openinfer_kernels.compile_gate` on all."""

import os
import subprocess
import sys

import pytest

from openinfer_kernels.compile_gate import EVERY_SHAPE, SHARED_MEMORY_KIB, compile_cases
from openinfer_kernels.dispatch import find_op, op_names

_BROKEN = """
import sys
from dataclasses import replace
from openinfer_kernels import compile_gate

case = compile_gate.compile_cases(["silu_and_mul"])[0]
prefill = compile_gate.compile_cases(["paged_attention"])[0]
cases = [
    case,
    replace(case, name="unknown-argument", signature={**case.signature, "x": "i32"}),
    replace(case, name="not-a-power-of-two", constexprs={"SIZE": 100, "BLOCK": 100}),
    replace(prefill, name="shared-memory"),
]
compile_gate.SHARED_MEMORY_KIB = {90: 1}
compile_gate.compile_cases = lambda ops: cases
sys.exit(compile_gate.main([]))
"""

_WIDEST_FIRST = """
import sys
from dataclasses import replace
from openinfer_kernels import compile_gate

(case,) = [
    case for case in compile_gate.compile_cases(["rms_norm"]) if case.name == "rms_norm-bf16-5120"
]
narrow = {**case.constexprs, "HIDDEN": 128, "BLOCK": 128}
half = {name: type_.replace("bf16", "fp16") for name, type_ in case.signature.items()}
cases = [
    replace(case, name="wide"),
    replace(case, name="narrow", constexprs=narrow, num_warps=1),
    replace(case, name="narrow-half", constexprs=narrow, num_warps=1, signature=half),
]
compile_gate.compile_cases = lambda ops: cases
sys.exit(compile_gate.main([]))
"""

_ONE_STEP = """
import torch
from openinfer_kernels.compile_gate import compiled_for
from openinfer_kernels.ops.fused_linear import FusedLinearSpec, _triton_few_rows
from openinfer_kernels.ops.linear import LinearSpec

linear = LinearSpec(in_features=256, out_features=1024, dtype=torch.bfloat16)
case = _triton_few_rows.compile_case(FusedLinearSpec(linear=linear, adds_residual=True), 16)
of = case.constexprs
assert of["BLOCK_K"] == of["K"]
before, *after = compiled_for(case, 90).asm["ptx"].split("griddepcontrol.wait")
weights = of["BLOCK_N"] * of["BLOCK_K"] // (8 * 32 * case.num_warps) * (case.num_stages - 1)
assert before.count("cp.async.cg.shared") == weights, before.count("cp.async.cg.shared")
assert before.count("cp.async.ca.shared") == before.count("ld.global") == 0
assert after
"""

_FEW_ROWS = """
from openinfer_kernels import compile_gate
from openinfer_kernels.compile_gate import compile_cases, compiled_for

for case in compile_cases(["fused_linear"]):
    if case.name.startswith("fused_linear-bf16") and case.name.endswith("-rows"):
        before, *after = compiled_for(case, 90).asm["ptx"].split("griddepcontrol.wait")
        of = case.constexprs
        stored = of["BLOCK_N"] * (2 if of["IS_GATED"] else 1)
        in_tile = stored * of["BLOCK_K"] // (8 * 32 * case.num_warps)
        assert before.count("cp.async.cg") == in_tile, case.name
        rows = max(1, of["BLOCK_M"] * of["BLOCK_K"] // (8 * 32 * case.num_warps))
        assert after[0].count("cp.async.cg") >= rows + in_tile, case.name
        assert len(after) == case.num_stages, case.name
        print(case.name)
"""

_MANY_ROWS = """
import re
from openinfer_kernels.compile_gate import compile_cases, compiled_for

for case in compile_cases(["fused_linear"]):
    if case.name.startswith("fused_linear-bf16") and case.name.endswith("-hopper"):
        *before, after = compiled_for(case, 90).asm["ptx"].split("griddepcontrol.wait")
        assert not re.search("ld[.]global|st[.]global|atom[.]", before[0]), case.name
        of = r"cp.async.bulk.tensor.2d[^ ]+ .*, .(%rd[0-9]+), "
        early, late = re.findall(of, "".join(before)), re.findall(of, after)
        assert len(set(early)) == 1 and len(early) == 2 * case.constexprs["NUM_STAGES"], case.name
        assert late[0] not in early, case.name
        print(case.name)
"""

_PROMPTS = """
from openinfer_kernels.compile_gate import compile_cases, compiled_for

for case in compile_cases(["fused_linear"]):
    if case.name.endswith("-prompts"):
        compiled = compiled_for(case, 90)
        assert "ld.global" not in compiled.asm["ptx"].split("griddepcontrol.wait")[0], case.name
        sass = compiled.asm["sass"]
        # Each warpgroup's loop over a box is unrolled, and no register is spilled.
        assert sass.count("HGMMA.64x256x16") == 2 * 4, case.name
        assert "STL" not in sass and "LDL" not in sass, case.name
        print(case.name)
"""

_PREPARED = """
from openinfer_kernels.compile_gate import compile_cases, compiled_for

for case in compile_cases(["fused_attention"]):
    if "prepare-bf16" in case.name:
        ptx = compiled_for(case, 90).asm["ptx"]
        assert "st.global.v4.b32" in ptx and "st.global.b16" not in ptx, case.name
        print(case.name)
"""

_LAUNCHES = """
import re, sys
from openinfer_kernels.compile_gate import compile_cases, compiled_for

cases = compile_cases(["fused_attention", "fused_linear", "paged_attention"])
for case in cases:
    if case.name in sys.argv:
        ptx = compiled_for(case, 90).asm["ptx"]
        order = re.findall("griddepcontrol.(launch_dependents|wait)", ptx)
        assert set(order) == {"launch_dependents", "wait"}, (case.name, order)
        print(case.name, order[0])
"""

# Whether the next kernel may start before this one has waited for the kernel before it.
_IS_EARLY = {
    "fused_linear-bf16-2560x6144": True,
    "fused_attention.decode-bf16-32x8x128-1": False,
    "fused_attention.decode-bf16-32x8x128-8": True,
    "fused_linear-bf16-4096x4096": False,
    "fused_linear-bf16-4096x24576": True,
    "fused_linear-bf16-2560x6144-32-hopper": False,
    "fused_linear-bf16-4096x24576-32-hopper": True,
    "paged_attention.extend-bf16-32x8x128": False,
    "paged_attention.merge-splits-bf16-32x8x128": True,
    "paged_attention.prefill-hopper-bf16-32x8x128": False,
}


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment
    )


def _checked(script: str, *arguments: str) -> list[str]:
    """Runs a check of compiled code and returns the words that it prints: names of cases."""
    done = _run("-c", script, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split()


def test_every_op_with_a_triton_backend_has_cases_with_names_of_their_own():
    cases = compile_cases()
    names = [case.name for case in cases]
    assert len(set(names)) == len(names)
    for op in op_names():
        has_cases = any(name.startswith(op) for name in names)
        assert ("triton" in find_op(op).order["cuda"]) == has_cases, op


@pytest.mark.long
def test_one_op_compiles_for_every_architecture():
    done = _run("-m", "openinfer_kernels.compile_gate", "silu_and_mul")
    assert done.returncode == 0, done.stdout + done.stderr
    for arch in SHARED_MEMORY_KIB:
        assert f"sm_{arch}" in done.stdout


@pytest.mark.long
def test_what_does_not_compile_or_fit_fails_the_gate():
    done = _run("-c", _BROKEN)
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "ok" in lines[0]
    assert "signature differs in x" in done.stdout
    assert "power of 2" in done.stdout
    assert "bytes of shared memory, the limit is 1024" in done.stdout


@pytest.mark.long
def test_the_widest_shape_is_compiled_everywhere():
    """The order of cases does not matter. Other cases are compiled for one architecture."""
    done = _run("-c", _WIDEST_FIRST)
    assert done.returncode == 0, done.stdout + done.stderr
    compiled = [line.split()[:2] for line in done.stdout.splitlines()]
    others = [f"sm_{arch}" for arch in SHARED_MEMORY_KIB if arch != EVERY_SHAPE]
    assert compiled == [
        ["wide", f"sm_{EVERY_SHAPE}"],
        ["narrow", f"sm_{EVERY_SHAPE}"],
        ["narrow-half", f"sm_{EVERY_SHAPE}"],
        *(["wide", arch] for arch in others),
    ]


@pytest.mark.long
def test_a_kernel_for_some_architectures_is_compiled_for_these():
    case = "replace(compile_gate.compile_cases(['silu_and_mul'])[0], archs=(80, 90))"
    done = _run(
        "-c",
        "from dataclasses import replace; from openinfer_kernels import compile_gate; "
        f"print([result.arch for result in compile_gate.compile_all([{case}])])",
    )
    assert done.stdout == "[90, 80]\n", done.stdout + done.stderr


@pytest.mark.long
def test_only_the_first_weights_are_read_before_the_kernel_before_is_done():
    assert len(_checked(_FEW_ROWS)) == 8


@pytest.mark.long
def test_the_residual_is_not_read_early_where_one_step_is_a_whole_product():
    _checked(_ONE_STEP)


@pytest.mark.long
def test_rows_and_residuals_of_the_kernel_for_many_rows_are_not_read_early():
    assert len(_checked(_MANY_ROWS)) == 12


@pytest.mark.long
def test_the_next_kernel_starts_early_where_that_was_measured_to_be_faster():
    printed = _checked(_LAUNCHES, *_IS_EARLY)
    found = dict(zip(printed[::2], printed[1::2], strict=True))
    assert {name: order == "launch_dependents" for name, order in found.items()} == _IS_EARLY


@pytest.mark.long
def test_sums_of_prompts_stay_in_registers():
    assert len(_checked(_PROMPTS)) == 1


@pytest.mark.long
def test_prepared_heads_are_stored_in_vectors():
    assert len(_checked(_PREPARED)) == 3


def test_what_is_compiled_is_what_is_launched():
    """Cases bound registers as launches do, and leave out the same arguments."""
    cases = {case.name: case for case in compile_cases(["fused_attention", "fused_linear"])}
    decode = "fused_attention.decode-bf16-32x8x128"
    for name, registers in (("1", None), ("8", None), ("1024", 128), ("64-shared", 128)):
        assert cases[f"{decode}-{name}"].max_registers == registers
        is_shared = name.endswith("shared")
        assert (cases[f"{decode}-{name}"].signature["shared_acc_ptr"] is None) != is_shared
    gate = cases["fused_linear-bf16-4096x24576-32-hopper"].signature
    assert gate["parts_ptr"] is gate["residual_ptr"] is None
    down = cases["fused_linear-bf16-9728x2560-32-hopper"].signature
    assert (down["parts_ptr"], down["residual_ptr"]) == ("*fp32", "*bf16")


def test_an_op_without_kernels_is_the_callers_mistake():
    with pytest.raises(ValueError, match="linear"):
        compile_cases(["linear"])
