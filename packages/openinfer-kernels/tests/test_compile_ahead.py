"""Compile-ahead, in processes of their own: the other tests' interpreter compiles nothing."""

import json
import os
import re
import subprocess
import sys

import pytest

from openinfer_kernels import Gpu
from openinfer_kernels.compile._kernel_list import KernelList
from openinfer_kernels.compile._noted_kernels import is_cached

GPU = Gpu(arch=90, num_multiprocessors=132)

_SCRIPT = """
import json, logging, os, sys
from dataclasses import asdict

import torch

from openinfer_kernels import (
    CompileAhead, Gpu, RMSNormSpec, SiluAndMulSpec, num_compiled_kernels, plan_rms_norm,
    plan_silu_and_mul,
)

logging.basicConfig(level=logging.INFO)
count = num_compiled_kernels()
spec = SiluAndMulSpec(intermediate_size=256, dtype=torch.bfloat16)
norm = RMSNormSpec(hidden_size=int(sys.argv[2]), eps=1e-6, dtype=torch.bfloat16)


def run():
    x = torch.empty(4, 512, dtype=torch.bfloat16, device="meta")
    y = plan_silu_and_mul(spec, "meta")(x)
    for rows in range(1, 4):
        plan_rms_norm(norm, "meta")(y[:rows], torch.empty(256, dtype=y.dtype, device="meta"))
    if sys.argv[3:] == ["fail"]:
        raise RuntimeError("no such step")


if sys.argv[3:] == ["crash"]:
    from openinfer_kernels.compile._noted_kernels import NotedKernel

    build = NotedKernel.build
    NotedKernel.build = lambda self: os.abort() if "silu" in self.name else build(self)


if sys.argv[3:] == ["another-triton"]:
    import triton.runtime.cache

    del triton.runtime.cache.get_cache_key


with CompileAhead(run, sys.argv[1], Gpu(arch=90, num_multiprocessors=132)) as ahead:
    print(json.dumps(asdict(ahead.wait()) | {"here": num_compiled_kernels() - count}))
assert plan_silu_and_mul(spec, "meta").__module__.endswith("_torch")
"""


@pytest.fixture
def compile_ahead(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT, *arguments],
            capture_output=True,
            text=True,
            env=environment,
        )
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        return (report["num_kernels"], report["num_compiled"], report["here"]), done.stderr

    return run


@pytest.mark.long
def test_what_steps_launch_is_compiled_once_and_then_found(compile_ahead, tmp_path):
    counts, log = compile_ahead("a", "256")
    assert counts == (2, 2, 0)
    assert f"into {tmp_path}" in log
    assert "2 of 2 kernels compiled in" in log
    # With the list of an earlier start, there is no dry run.
    counts, log = compile_ahead("a", "256")
    assert counts == (2, 0, 0)
    assert "compil" not in log
    # Other steps, which launch one cached kernel.
    counts, log = compile_ahead("b", "128")
    assert counts == (2, 1, 0)
    assert "1 of 2 kernels compiled in" in log
    # A kernel that was deleted from the cache.
    for metadata in tmp_path.glob("*/__grp___silu_and_mul_kernel.json"):
        metadata.unlink()
    assert compile_ahead("a", "256")[0] == (2, 1, 0)


@pytest.mark.long
def test_steps_that_cannot_be_tried_cost_no_start(compile_ahead):
    for _ in range(2):
        counts, log = compile_ahead("a", "256", "fail")
        assert counts[0] == 2
        assert "RuntimeError: no such step" in log


@pytest.mark.long
def test_a_compiler_that_crashes_fails_one_kernel(compile_ahead, tmp_path):
    counts, log = compile_ahead("a", "256", "crash")
    assert counts == (2, 2, 0)
    assert re.search("compiling ahead: _silu_and_mul_kernel: .* has ended early", log)
    # The next start compiles it again; the other kernel is cached.
    assert compile_ahead("a", "256")[0] == (2, 1, 0)


@pytest.mark.long
def test_a_cache_that_cannot_be_written_costs_no_start(compile_ahead, tmp_path):
    tmp_path.rmdir()
    tmp_path.touch()
    counts, log = compile_ahead("a", "256")
    assert counts == (0, 0, 0)
    assert "kernels are compiled when they are first launched: " in log


@pytest.mark.long
def test_a_triton_with_other_names_costs_no_start(compile_ahead):
    counts, log = compile_ahead("a", "256", "another-triton")
    assert counts == (0, 0, 0)
    assert "kernels are compiled when they are first launched: " in log
    assert "get_cache_key" in log


@pytest.mark.long
def test_a_damaged_list_or_entry_is_compiled_anew(compile_ahead, tmp_path):
    assert compile_ahead("a", "256")[0] == (2, 2, 0)
    (kernels,) = tmp_path.glob("*/kernels.json")
    whole = kernels.read_text()
    kernels.write_text(whole[:20])
    assert compile_ahead("a", "256")[0] == (2, 0, 0)
    assert kernels.read_text() == whole
    (entry,) = tmp_path.glob("*/__grp___silu_and_mul_kernel.json")
    entry.write_text("")
    assert compile_ahead("a", "256")[0] == (2, 1, 0)
    assert json.loads(entry.read_text())["child_paths"]


@pytest.mark.parametrize(
    "damaged",
    ["", '[["kernel", "ab', "null", "{}", '[["kernel"]]', "[1]", '[["kernel", 1]]', '[["a", "?"]]'],
)
def test_a_damaged_list_counts_as_none(damaged, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernels = KernelList("a", GPU)
    kernels.write([])
    assert kernels.num_cached() == 0
    (path,) = tmp_path.glob("*/kernels.json")
    path.write_text(damaged)
    assert kernels.num_cached() is None


@pytest.mark.parametrize(
    ("variable", "is_of_kernels"),
    [
        ("TRITON_DEFAULT_FP_FUSION", True),
        ("DISABLE_LLVM_OPT", True),
        ("TRITON_DUMP_DIR", False),
        ("HOME", False),
    ],
)
def test_a_list_holds_for_what_the_environment_tells_triton(
    variable, is_of_kernels, tmp_path, monkeypatch
):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    KernelList("a", GPU).write([])
    monkeypatch.setenv(variable, "0")
    assert (KernelList("a", GPU).num_cached() is None) == is_of_kernels


@pytest.mark.parametrize("damaged", ["", "[]", '{"child_paths": 1}', '{"child_paths": {"a": {}}}'])
def test_a_damaged_entry_is_taken_out(damaged, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert not is_cached("kernel", "ab")
    (folder,) = tmp_path.iterdir()
    entry = folder / "__grp__kernel.json"
    entry.write_text(damaged)
    assert not is_cached("kernel", "ab")
    assert not entry.exists()
