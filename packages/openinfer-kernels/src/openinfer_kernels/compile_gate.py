"""Compiles every Triton kernel for every supported GPU, on a machine that need not have one.

`python -m openinfer_kernels.compile_gate [OP ...]` prints a line for each kernel and architecture
and exits 1 if one does not compile or needs more shared memory than that GPU gives a program.
The unit tests run kernels in Triton's interpreter, which does not show these errors.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from openinfer_kernels.compile._noted_kernels import COMPILER_BYTES
from openinfer_kernels.compile._processes import ForkedJobs, num_processes
from openinfer_kernels.dispatch import find_op, op_names
from openinfer_kernels.errors import BackendUnavailable
from openinfer_kernels.gpu._compile_case import CompileCase

# Compute capability to the most shared memory a program may take, KiB (CUDA C++ Programming Guide,
# "Technical Specifications per Compute Capability").
SHARED_MEMORY_KIB = {80: 163, 89: 99, 90: 227, 100: 227, 120: 99}
EVERY_SHAPE = 90
"""Architecture for which every case is compiled. For the other architectures one case is compiled
for each kernel and width of types: the case with the most shared memory, because it would exceed
the limit first. The two 16-bit types count as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileResult:
    """The result of compiling one case for one architecture.

    Attributes:
        name: Name of the case.
        arch: Compute capability, 90 for sm_90.
        shared_bytes: Shared memory of a program; 0 if the kernel did not compile.
        error: None if the kernel compiled and fits the GPU, else the reason.
    """

    name: str
    arch: int
    shared_bytes: int
    error: str | None


def compile_cases(ops: Sequence[str] = ()) -> list[CompileCase]:
    """Returns the cases of the named ops, by default of all that have GPU kernels.

    Raises:
        ValueError: A named op has no GPU kernel to compile, or no package brings it.
    """
    cases = {name: cases for name in op_names() if (cases := _cases_of(name))}
    unknown = sorted(set(ops) - set(cases))
    if unknown:
        raise ValueError(f"no GPU kernels of {', '.join(unknown)}; {', '.join(cases)} have some")
    return [case for op in ops or cases for case in cases[op]]


def _cases_of(name: str) -> list[CompileCase]:
    """Returns the cases of an op's back ends, without those whose package is not installed."""
    op = find_op(name)
    cases: list[CompileCase] = []
    for backend in op.modules:
        with suppress(BackendUnavailable):
            cases += getattr(op.load(backend), "compile_cases", list)()
    return cases


def compile_all(cases: Sequence[CompileCase]) -> Iterator[CompileResult]:
    """Compiles the cases for `EVERY_SHAPE`, then for the other architectures, on all cores."""
    shared_bytes: list[int] = []
    for result in _compile_each([(case, EVERY_SHAPE) for case in cases]):
        shared_bytes.append(result.shared_bytes)
        yield result
    widest: dict[object, tuple[int, CompileCase]] = {}
    for case, shared in zip(cases, shared_bytes, strict=True):
        kind = (case.kernel, *sorted(_by_width(case.signature).items()))
        # Cases are listed by size, so the last of equal cases is kept.
        if kind not in widest or shared >= widest[kind][0]:
            widest[kind] = (shared, case)
    others = [arch for arch in SHARED_MEMORY_KIB if arch != EVERY_SHAPE]
    yield from _compile_each(
        [
            (case, arch)
            for _, case in widest.values()
            for arch in others
            if case.archs is None or arch in case.archs
        ]
    )


def _by_width(signature: Mapping[str, str | None]) -> dict[str, str | None]:
    return {name: type_ and type_.replace("bf16", "fp16") for name, type_ in signature.items()}


def _compile_each(work: list[tuple[CompileCase, int]]) -> Iterator[CompileResult]:
    jobs: ForkedJobs[CompileResult] = ForkedJobs(num_processes(COMPILER_BYTES))
    for case, arch in work:
        jobs.add(partial(_compile, case, arch))
    for (case, arch), result in zip(work, jobs.results(), strict=True):
        if isinstance(result, ChildProcessError):  # the compiler has crashed
            yield CompileResult(name=case.name, arch=arch, shared_bytes=0, error=str(result))
        else:
            yield result


def _compile(case: CompileCase, arch: int) -> CompileResult:
    try:
        compiled = compiled_for(case, arch)
    except Exception as error:  # any error of the compiler is the result of this case
        text = str(error).strip() or type(error).__name__
        return CompileResult(name=case.name, arch=arch, shared_bytes=0, error=text)
    shared = int(compiled.metadata.shared)
    limit = SHARED_MEMORY_KIB[arch] * 1024
    too_much = f"{shared} bytes of shared memory, the limit is {limit}" if shared > limit else None
    if not compiled.asm.get("cubin"):
        too_much = "the compiler produced no cubin"
    return CompileResult(name=case.name, arch=arch, shared_bytes=shared, error=too_much)


def compiled_for(case: CompileCase, arch: int) -> Any:
    """Compiles a case for a compute capability and returns Triton's kernel.

    Its machine code is in `asm`, its sizes in `metadata`.

    Raises:
        ValueError: The case names other arguments than the kernel has.
        Exception: Any error of the compiler.
    """
    # A launch passes arguments in the kernel's own order; the names must agree.
    order = case.kernel.arg_names
    given = {name: type_ for name, type_ in case.signature.items() if type_ is not None}
    left_out = [name for name in case.signature if name not in given]
    constexprs = {**case.constexprs, **dict.fromkeys(left_out)}
    constexprs |= {"PDL": arch >= 90} if case.has_pdl else {}
    types = {**given, **dict.fromkeys(constexprs, "constexpr")}
    if set(order) != set(types):
        difference = ", ".join(sorted(set(order) ^ set(types)))
        raise ValueError(f"signature differs in {difference}")
    aligned = [
        p.name
        for p in case.kernel.params
        if types[p.name].startswith("*") or (p.name.endswith("stride") and not p.do_not_specialize)
    ]
    language = GluonASTSource if case.kernel.is_gluon() else ASTSource
    source = language(
        fn=case.kernel,
        signature={name: types[name] for name in order},
        constexprs={(order.index(name),): value for name, value in constexprs.items()},
        # Real launches find that pointers and strides are divisible by 16. Without that, the
        # compiler would make copies neither asynchronous nor in a ring.
        attrs={(order.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    options = {
        "num_warps": case.num_warps,
        "num_stages": case.num_stages,
        "maxnreg": case.max_registers,
    }
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def main(arguments: Sequence[str]) -> int:
    """Runs the gate and returns its exit status."""
    if triton.knobs.runtime.interpret:
        print("TRITON_INTERPRET is set, so kernels are not compiled; unset it", file=sys.stderr)
        return 2
    failed = 0
    for result in compile_all(compile_cases(arguments)):
        verdict = "ok" if result.error is None else f"FAILED: {result.error}"
        print(f"{result.name:45s} sm_{result.arch:<4d}{result.shared_bytes:>7d} B  {verdict}")
        failed += result.error is not None
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
