"""What `CompileAhead` reports."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelReport:
    """What became of the kernels of an executor.

    Attributes:
        num_kernels: Kernels that its steps may launch.
        num_compiled: Those that the cache did not have.
        failed: What could not be compiled, and why.
        seconds: From the beginning to the end of compiling.
    """

    num_kernels: int
    num_compiled: int
    failed: tuple[str, ...] = ()
    seconds: float = 0.0
