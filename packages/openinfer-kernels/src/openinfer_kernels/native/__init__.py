"""C kernels for CPUs with AVX-512 and its bf16 arithmetic, compiled once on each machine.

torch has no fast product of a few rows with packed weights and no attention over scattered blocks,
and the overhead of its small operators exceeds their arithmetic in a step of one token. The C files
lie beside this module. gcc compiles them into one shared library in the user's cache folder when an
op is first planned for such a CPU, which takes about ten seconds; later starts load the library.
If it cannot be compiled or loaded, `why_not` says why, and the ops run on torch's operators.

The library runs on torch's own OpenMP: there is one pool of threads, and `torch.set_num_threads`
sets its size. The functions take pointers. The back ends that call them check device, dtype, shape
and strides first; the C code checks positions and slots. Lengths and block numbers of attention are
not checked, since the scheduler makes them. ctypes releases the GIL during a call.
"""

from openinfer_kernels.native._build import NativeUnavailable, cache_folder
from openinfer_kernels.native._checks import wrong_tensors
from openinfer_kernels.native._library import failure, library, why_not

__all__ = [
    "NativeUnavailable",
    "cache_folder",
    "failure",
    "library",
    "why_not",
    "wrong_tensors",
]
