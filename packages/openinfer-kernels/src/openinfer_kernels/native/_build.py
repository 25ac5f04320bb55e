"""Compiling the C kernels, and the cache folder of compiled libraries.

The name of a library ends with the digest of its bytes. So a file that a crash or a full disk has
damaged is detected before it is loaded, and compiled again.
"""

import contextlib
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

from openinfer_kernels.errors import KernelError

_SOURCES = ("attention.c", "decode.c", "elementwise.c", "linear.c", "prefill.c", "quantize.c")
_HEADERS = ("common.h", "decode.h", "prefill.h", "rows.h", "step.h")
_CPU_FLAGS = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "fma")
_ISA = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16", "-mfma")
# The sources say which products and sums are fused; the compiler must fuse no others.
_COMPILE = ("-O3", "-fPIC", "-fopenmp", "-ffp-contract=off", *_ISA)
_COMPILE_TIMEOUT_S = 300
# Age from which scratch folders of killed compilations, and unused libraries, are removed.
_OLD_SCRATCH_S = 3600 + len(_SOURCES) * _COMPILE_TIMEOUT_S
_OLD_LIBRARY_S = 30 * 24 * 3600
_SCRATCH = "compiling-"

_logger = logging.getLogger(__name__)


class NativeUnavailable(KernelError):
    """The library cannot be compiled or loaded here; the message says why."""


def check_machine() -> None:
    """Checks that this CPU can run the kernels.

    Raises:
        NativeUnavailable: It cannot.
    """
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


def built_library() -> Path:
    """Returns the library's file; compiles it unless the cache has an undamaged file of it.

    Raises:
        NativeUnavailable: It cannot be compiled.
        OSError: The cache cannot be read or written.
    """
    openmp = _openmp_runtime()
    digest = hashlib.sha256(" ".join([*_COMPILE, openmp.name]).encode())
    folder = Path(__file__).parent
    for name in (*_HEADERS, *_SOURCES):
        digest.update((folder / name).read_bytes())
    cache, version = cache_folder(), f"kernels-{digest.hexdigest()[:16]}"
    for built in cache.glob(f"{version}-*.so"):
        if built.name == _name(version, built.read_bytes()):
            with contextlib.suppress(OSError):  # a read-only cache is enough
                os.utime(built)
            return built
        _logger.warning("%s is damaged; it is compiled again", built)
        built.unlink()
    _sweep(cache)
    return _compile(folder, cache, version, openmp)


def _name(version: str, library: bytes) -> str:
    return f"{version}-{hashlib.sha256(library).hexdigest()[:16]}.so"


def _sweep(cache: Path) -> None:
    """Removes files that are too old to be in use."""
    now = time.time()
    for entry in cache.iterdir():
        with contextlib.suppress(OSError):  # another process has removed it
            age = now - entry.stat().st_mtime
            if entry.name.startswith(_SCRATCH) and age > _OLD_SCRATCH_S:
                shutil.rmtree(entry)
            elif entry.name.startswith("kernels-") and age > _OLD_LIBRARY_S:
                entry.unlink()


def _openmp_runtime() -> Path:
    """Returns the OpenMP library that torch has loaded; a second one would have its own threads."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = Path(line.split(maxsplit=5)[-1])
        if path.name.startswith("libgomp"):
            return path
    raise NativeUnavailable("torch runs on another OpenMP library than gcc's")


def cache_folder() -> Path:
    """Returns the folder of compiled libraries, and creates it.

    Only this user may write to it: its files are loaded into the process.

    Raises:
        NativeUnavailable: There can be no such folder.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not root.is_absolute():  # the XDG specification says to ignore a relative path
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
    """Compiles in a scratch folder, then renames, so that several processes may do it at once."""
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
        # The first error says what failed. The last lines say why: on a full disk, only ld does.
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        first = [line for line in lines if "error" in line][:1]
        reason = "; ".join(dict.fromkeys([*first, *lines[-3:]])) or "it failed"
        raise NativeUnavailable(f"gcc cannot compile the kernels: {reason}")
