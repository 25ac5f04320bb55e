"""Compiling and loading the C kernels, and the reasons where that is impossible."""

import ctypes
import os
import shutil
import subprocess
import sys

import pytest
import torch

from openinfer_kernels import LinearSpec, RMSNormSpec, native, plan_linear, plan_rms_norm
from openinfer_kernels.dispatch import _choice
from openinfer_kernels.native import _build, _library

CPU = torch.device("cpu")


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """A process that has not loaded the library, with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _library._load.cache_clear()
    yield tmp_path / "openinfer" / "native"
    _library._load.cache_clear()


@pytest.fixture
def machine(fresh):
    """A process as above on a machine that can compile the kernels."""
    try:
        _build.check_machine()
    except native.NativeUnavailable as error:
        pytest.skip(str(error))
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    return fresh


@pytest.fixture(scope="session")
def compiled():
    """The library's file in this machine's own cache."""
    if native.why_not(torch.bfloat16, CPU) is not None:
        pytest.skip("no native kernels here")
    return native.library()._name


@pytest.fixture
def quick(compiled, machine, monkeypatch):
    """A machine whose compiler copies the finished library."""
    monkeypatch.setattr(_build, "_run", lambda command: shutil.copy(compiled, command[-1]))
    return machine


@pytest.mark.long
def test_it_is_compiled_once_and_found_again(machine, monkeypatch):
    runs = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: runs.append(a) or run(*a, **k))
    assert native.why_not(torch.bfloat16, CPU) is None
    num_runs = len(runs)
    assert num_runs == len(_build._SOURCES) + 1
    _library._load.cache_clear()
    assert native.library() is not None
    assert len(runs) == num_runs
    (built,) = machine.iterdir()
    assert built.suffix == ".so"
    assert machine.stat().st_mode & 0o777 == 0o700


@pytest.mark.long
def test_changed_sources_are_compiled_anew(machine, monkeypatch):
    first = _build.built_library()
    monkeypatch.setattr(_build, "_COMPILE", (*_build._COMPILE, "-DCHANGED"))
    assert _build.built_library() != first


@pytest.mark.long
def test_one_openmp_library_serves_torch_and_the_kernels():
    if native.why_not(torch.bfloat16, CPU) is not None:
        pytest.skip("no native kernels here")
    program = """
import torch
from openinfer_kernels.native import library
library()
maps = open("/proc/self/maps").read().splitlines()
print(len({line.split()[-1] for line in maps if "omp" in line.rsplit("/")[-1]}))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.split() == ["1"], run.stderr


def test_the_exponential_is_as_exact_as_float32_allows(machine, tmp_path):
    """The result is within 2 ulp of e^x, infinite past float32's range, and NaN for NaN."""
    source, library = tmp_path / "exp.c", tmp_path / "exp.so"
    source.write_text("""
#include "common.h"
void exponentials(float *y, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) _mm512_storeu_ps(y + i, exp16(_mm512_loadu_ps(x + i)));
}
""")
    folder = f"-I{native.__path__[0]}"
    command = ["gcc", *_build._COMPILE, folder, "-shared", str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    exponentials = ctypes.CDLL(str(library)).exponentials
    exponentials.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]

    def exp16(x):
        y = torch.empty_like(x)
        exponentials(y.data_ptr(), x.data_ptr(), len(x))
        return y

    x = torch.cat((torch.linspace(-87, 88.5, 1 << 20), torch.linspace(-1, 1, 1 << 20)))
    exact = x.double().exp()
    ulp = 2.0 ** (exact.log2().floor() - 23)
    assert ((exp16(x).double() - exact).abs() / ulp).max() < 2
    x = torch.tensor([-torch.inf, -1e9, 89, 3e38, torch.inf, torch.nan, -torch.nan, 0] * 2)
    least, infinite = torch.tensor(-87.0).exp(), torch.tensor(torch.inf)
    expected = torch.stack((least, least, infinite, infinite, infinite)).repeat(2)
    torch.testing.assert_close(exp16(x).view(2, 8)[:, :5].flatten(), expected)
    assert exp16(x).view(2, 8)[:, 5:7].isnan().all()
    assert exp16(x)[7] == 1


def test_without_a_compiler_ops_fall_back(fresh, monkeypatch):
    monkeypatch.setattr(_library, "check_machine", lambda: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "gcc is not installed" in native.why_not(torch.bfloat16, CPU)
    with pytest.raises(native.NativeUnavailable, match="gcc is not installed"):
        native.library()
    spec = LinearSpec(in_features=8, out_features=16, dtype=torch.bfloat16)
    linear = plan_linear(spec, "cpu")
    x = torch.ones(1, 8, dtype=torch.bfloat16)
    assert linear(x, linear.pack(torch.ones(16, 8, dtype=torch.bfloat16))).eq(8).all()
    norm = plan_rms_norm(RMSNormSpec(hidden_size=8, eps=0.0, dtype=torch.bfloat16), "cpu")
    assert norm(x, torch.ones(8, dtype=torch.bfloat16)).eq(1).all()


def test_another_cpu_is_named(fresh, monkeypatch):
    monkeypatch.setattr(_build.sys, "platform", "linux")
    monkeypatch.setattr(_build.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(_build, "_cpu_flags", lambda: frozenset({"avx2", "fma", "avx512f"}))
    reason = native.why_not(torch.bfloat16, CPU)
    assert "lacks avx512bw" in reason
    assert "avx512_bf16" in reason
    assert "fma" not in reason


def test_another_system_is_named(fresh, monkeypatch):
    monkeypatch.setattr(_build.platform, "machine", lambda: "arm64")
    assert "needs Linux on x86-64" in native.why_not(torch.bfloat16, CPU)


@pytest.mark.long
def test_sources_that_do_not_compile_are_a_reason(machine, monkeypatch):
    monkeypatch.setattr(_build, "_COMPILE", (*_build._COMPILE, "-DGROUP=1"))
    assert "gcc cannot compile the kernels" in native.why_not(torch.bfloat16, CPU)
    assert list(machine.iterdir()) == []


def test_a_folder_that_others_can_write_is_not_trusted(machine):
    machine.mkdir(parents=True)
    machine.chmod(0o777)
    assert "can be written by others" in native.why_not(torch.bfloat16, CPU)


@pytest.mark.parametrize(
    "damage", [lambda b: b"", lambda b: b[: len(b) // 2]], ids=["empty", "half"]
)
def test_a_library_that_is_damaged_is_compiled_anew(damage, quick, caplog):
    built = _build.built_library()
    built.write_bytes(damage(built.read_bytes()))
    assert native.why_not(torch.bfloat16, CPU) is None
    assert "is damaged" in caplog.text
    assert _build.built_library() == built


def test_what_killed_compilations_and_old_versions_left_is_swept(quick):
    quick.mkdir(parents=True)
    (quick / "compiling-old").mkdir()
    (quick / "compiling-now").mkdir()
    for name in ("kernels-old.so", "kernels-recent.so"):
        (quick / name).touch()
    for name in ("compiling-old", "kernels-old.so"):
        os.utime(quick / name, (0, 0))
    _build.built_library()
    left = {entry.name for entry in quick.iterdir()}
    assert {"compiling-now", "kernels-recent.so"} < left
    assert not {"compiling-old", "kernels-old.so"} & left


def test_without_a_home_folder_there_is_a_reason(machine, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(_build.Path, "home", homeless)
    assert "set HOME or XDG_CACHE_HOME" in native.why_not(torch.bfloat16, CPU)


def test_a_relativecache_folder_is_ignored(fresh, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setattr(_build.Path, "home", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
    assert native.cache_folder() == tmp_path / ".cache" / "openinfer" / "native"


def test_a_folder_of_another_user_is_named(fresh, monkeypatch):
    mine = os.getuid()
    monkeypatch.setattr(_build.os, "getuid", lambda: mine + 1)
    with pytest.raises(native.NativeUnavailable, match=f"another user .uid {mine}."):
        native.cache_folder()


def test_a_full_disk_is_named(monkeypatch):
    """The linker's line with the cause comes before gcc's line that the linker failed."""
    stderr = "ld: final link failed: No space left on device\ncollect2: error: ld returned 1\n"
    failed = subprocess.CompletedProcess([], 1, stderr=stderr)
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: failed)
    with pytest.raises(native.NativeUnavailable, match="No space left on device"):
        _build._run(["gcc"])


def test_a_choice_is_logged_once_and_slow_kernels_are_a_warning(machine, monkeypatch, caplog):
    _choice._announce.cache_clear()
    _choice._warn_of_slow_kernels.cache_clear()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    caplog.set_level("INFO")
    spec = RMSNormSpec(hidden_size=8, eps=0.0, dtype=torch.bfloat16)
    for _ in range(2):
        plan_rms_norm(spec, "cpu")
    plan_linear(LinearSpec(in_features=8, out_features=16, dtype=torch.bfloat16), "cpu")
    said = [(record.levelname, record.message) for record in caplog.records]
    assert [level for level, _ in said] == ["INFO", "WARNING", "INFO"]
    assert said[0][1].startswith("rms_norm on cpu: torch (not native: gcc is not installed")
    assert said[1][1].endswith(native.why_not(torch.bfloat16, CPU))


def test_another_dtype_is_no_warning(machine, monkeypatch, caplog):
    _choice._announce.cache_clear()
    _choice._warn_of_slow_kernels.cache_clear()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    caplog.set_level("INFO")
    plan_rms_norm(RMSNormSpec(hidden_size=8, eps=0.0, dtype=torch.float32), "cpu")
    (record,) = caplog.records
    assert record.levelname == "INFO"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_dtypes_are_named(dtype):
    assert "computes in bfloat16" in native.why_not(dtype, CPU)
    assert "needs a CPU" in native.why_not(dtype, torch.device("cuda"))
