"""The report of `CompileAhead`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelReport:
    """The kernels that the steps of an executor launch, and how they were compiled.

    Attributes:
        num_kernels: Kernels that the steps may launch.
        num_compiled: Kernels among them that Triton's cache did not have.
        failed: One reason for each kernel that could not be compiled.
        seconds: Time for finding and compiling them.
    """

    num_kernels: int
    num_compiled: int
    failed: tuple[str, ...] = ()
    seconds: float = 0.0
