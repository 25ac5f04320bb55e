"""C kernels for CPUs with AVX-512 and its bf16 arithmetic, compiled once on each machine.

torch has no fast product of a few rows with packed weights, no attention over scattered blocks, and
its small operators cost more than their arithmetic in a step of one token. The sources lie beside
this file; gcc turns them into one shared library in the user's cache folder when a model is built
for the first time (about ten seconds), later starts load it. Where it cannot be had, `why_not` says
so in words and the ops fall back on torch.

A library's name ends with the digest of its bytes, so one that a crash or a full disk has damaged
is seen before it is loaded, and compiled anew.

The library runs on torch's own OpenMP, so there is one pool of threads and `torch.set_num_threads`
rules both. Functions take pointers. The backends that call them check device, dtype, shape and
strides first; here positions and slots are checked. What is not: the lengths and block numbers
that attention is given, which the scheduler answers for. ctypes releases the interpreter while
they run.
"""

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from openinfer_kernels.errors import KernelError

_SOURCES = ("attention.c", "decode.c", "elementwise.c", "linear.c", "prefill.c", "quantize.c")
_HEADERS = ("attention.h", "common.h", "rows.h")
_CPU_FLAGS = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "fma")
_ISA = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16", "-mfma")
# Products and sums are fused where the sources say so, whatever the compiler's default.
_COMPILE = ("-O3", "-fPIC", "-fopenmp", "-ffp-contract=off", *_ISA)
_COMPILE_TIMEOUT_S = 300
# What compilations that were killed have left, and libraries of versions nobody starts any more.
_OLD_SCRATCH_S = 3600 + len(_SOURCES) * _COMPILE_TIMEOUT_S
_OLD_LIBRARY_S = 30 * 24 * 3600
_SCRATCH = "compiling-"

_logger = logging.getLogger(__name__)

_POINTER, _SIZE, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_ATTENTION = [_POINTER] * 4 + [_SIZE] + [_POINTER] * 3 + [_SIZE] * 6 + [_FLOAT]
_SIGNATURES = {
    # y, x, weight, scales, norm weight, residual, rows of x, out_features, in_features, gated, eps,
    # threads
    **dict.fromkeys(
        ("linear_bf16", "linear_int8", "linear_int4"),
        [_POINTER] * 6 + [_SIZE] * 3 + [_INT, _FLOAT, _INT],
    ),
    # packed, scales, weight, out_features, in_features, threads
    "quantize_int8": [_POINTER] * 3 + [_SIZE] * 2 + [_INT],
    "quantize_int4": [_POINTER] * 3 + [_SIZE] * 2 + [_INT],
    # out, q, k_cache, v_cache, block stride, cu_seqlens_q, seq_lens, block_table, its stride,
    # sequences, heads, kv heads, head_dim, block size, scale, threads
    "paged_attention": [*_ATTENTION, _INT],
    # The same with qkv, then norm weights of queries and keys, eps, cos_sin, positions, slots, rows
    # of cos_sin, blocks, tokens, threads
    "fused_attention": [*_ATTENTION, *[_POINTER] * 2, _FLOAT, *[_POINTER] * 3, *[_SIZE] * 3, _INT],
    # y, x, weight, rows, heads, row stride, head stride, size, eps, threads
    "rms_norm": [_POINTER] * 3 + [_SIZE] * 5 + [_FLOAT, _INT],
    # q out, k out, q, k, cos_sin, positions, rows of cos_sin, tokens, heads, kv heads, head_dim,
    # strides, threads
    "rope": [_POINTER] * 6 + [_SIZE] * 7 + [_INT],
    # y, gate_up, tokens, size, threads
    "silu_and_mul": [_POINTER] * 2 + [_SIZE] * 2 + [_INT],
    # k, v, k_cache, v_cache, slots, tokens, width, k, v and block strides in bytes, block size,
    # blocks
    "store_kv": [_POINTER] * 5 + [_SIZE] * 7,
}
# The others return nothing.
_RESULTS = {
    **dict.fromkeys(("linear_bf16", "linear_int8", "linear_int4"), _INT),
    **dict.fromkeys(("paged_attention", "fused_attention"), _INT),
    **dict.fromkeys(("rope", "store_kv"), _SIZE),
}


class NativeUnavailable(KernelError):
    """The library cannot be had here; the message says why."""


def why_not(dtype: torch.dtype, device: torch.device) -> str | None:
    """Returns None if the kernels run for this dtype on this device, else the reason."""
    if device.type != "cpu":
        return f"needs a CPU, this is {device.type}"
    if dtype is not torch.bfloat16:
        return f"computes in bfloat16, not in {str(dtype).removeprefix('torch.')}"
    loaded = _load()
    return loaded if isinstance(loaded, str) else None


def failure() -> str | None:
    """Returns why a machine that could run the kernels does without them; None if it does not."""
    loaded = _load()
    if not isinstance(loaded, str):
        return None
    try:
        _check_machine()
    except NativeUnavailable:
        return None
    return loaded


def library() -> ctypes.CDLL:
    """Returns the library.

    Raises:
        NativeUnavailable: `why_not` says no.
    """
    loaded = _load()
    if isinstance(loaded, str):
        raise NativeUnavailable(loaded)
    return loaded


@functools.cache
def _load() -> ctypes.CDLL | str:
    """The library, or why there is none; asked for once a process."""
    try:
        _check_machine()
        loaded = ctypes.CDLL(str(_built()))
    except (NativeUnavailable, OSError) as error:
        return str(error)
    for name, arguments in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.argtypes = arguments
        function.restype = _RESULTS.get(name)
    return loaded


def _check_machine() -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise NativeUnavailable(f"needs Linux on x86-64, this is {sys.platform}")
    present = _cpu_flags()
    missing = [flag for flag in _CPU_FLAGS if flag not in present]
    if missing:
        raise NativeUnavailable(f"this CPU lacks {', '.join(missing)}")


def _cpu_flags() -> frozenset[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return frozenset(line.split(":", 1)[1].split())
    return frozenset()


def _built() -> Path:
    """The library's file, compiled unless this version of it lies whole in the cache."""
    openmp = _openmp_runtime()
    digest = hashlib.sha256(" ".join([*_COMPILE, openmp.name]).encode())
    folder = Path(__file__).parent
    for name in (*_HEADERS, *_SOURCES):
        digest.update((folder / name).read_bytes())
    cache, version = cache_folder(), f"kernels-{digest.hexdigest()[:16]}"
    for built in cache.glob(f"{version}-*.so"):
        if built.name == _name(version, built.read_bytes()):
            with contextlib.suppress(OSError):  # a cache that can only be read serves as well
                os.utime(built)
            return built
        _logger.warning("%s is damaged; it is compiled anew", built)
        built.unlink()
    _sweep(cache)
    return _compile(folder, cache, version, openmp)


def _name(version: str, library: bytes) -> str:
    return f"{version}-{hashlib.sha256(library).hexdigest()[:16]}.so"


def _sweep(cache: Path) -> None:
    """Removes what is too old to be in use."""
    now = time.time()
    for entry in cache.iterdir():
        with contextlib.suppress(OSError):  # somebody else has swept it
            age = now - entry.stat().st_mtime
            if entry.name.startswith(_SCRATCH) and age > _OLD_SCRATCH_S:
                shutil.rmtree(entry)
            elif entry.name.startswith("kernels-") and age > _OLD_LIBRARY_S:
                entry.unlink()


def _openmp_runtime() -> Path:
    """The OpenMP library that torch has loaded: a second one would bring its own threads."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = Path(line.split(maxsplit=5)[-1])
        if path.name.startswith("libgomp"):
            return path
    raise NativeUnavailable("torch runs on another OpenMP library than gcc's")


def cache_folder() -> Path:
    """Where the library lies. Ours alone: what lies there is loaded into the process.

    Raises:
        NativeUnavailable: there can be no such folder.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not root.is_absolute():  # the specification has relative ones ignored
        try:
            root = Path.home() / ".cache"
        except RuntimeError:
            reason = "there is no home folder for the cache; set HOME or XDG_CACHE_HOME"
            raise NativeUnavailable(reason) from None
    folder = root / "openinfer" / "native"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid():
        owner = f"{folder} belongs to another user (uid {status.st_uid})"
        raise NativeUnavailable(f"{owner}; set XDG_CACHE_HOME to a folder of your own")
    if status.st_mode & 0o022:
        raise NativeUnavailable(f"{folder} can be written by others; chmod go-w it, or remove it")
    return folder


def _compile(sources: Path, cache: Path, version: str, openmp: Path) -> Path:
    """Compiles in a folder of its own, then renames: processes may do this at the same time."""
    compiler = shutil.which("gcc")
    if compiler is None:
        raise NativeUnavailable("gcc is not installed; the package gcc makes CPU inference faster")
    _logger.info("compiling the CPU kernels: about ten seconds, once on this machine")
    with tempfile.TemporaryDirectory(dir=cache, prefix=_SCRATCH) as scratch:
        objects = []
        for name in _SOURCES:
            objects.append(f"{scratch}/{name}.o")
            _run([compiler, *_COMPILE, "-c", str(sources / name), "-o", objects[-1]])
        # Linked without -fopenmp, which would add the compiler's own OpenMP library.
        library = Path(scratch) / "library"
        _run([compiler, "-shared", *objects, str(openmp), "-lm", "-o", str(library)])
        target = cache / _name(version, library.read_bytes())
        with library.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(library, target)
    return target


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NativeUnavailable(f"gcc took more than {_COMPILE_TIMEOUT_S} s") from None
    if done.returncode:
        # The first error says what, the last lines why: of a full disk ld's, not gcc's, names it.
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        first = [line for line in lines if "error" in line][:1]
        reason = "; ".join(dict.fromkeys([*first, *lines[-3:]])) or "it failed"
        raise NativeUnavailable(f"gcc cannot compile the kernels: {reason}")
