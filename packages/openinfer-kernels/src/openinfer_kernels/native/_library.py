"""The compiled library: loading it, and the signatures of its functions."""

import ctypes
from functools import cache

import torch

from openinfer_kernels.native._build import NativeUnavailable, built_library, check_machine

_POINTER, _SIZE, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_ATTENTION = [_POINTER] * 4 + [_SIZE] + [_POINTER] * 3 + [_SIZE] * 6 + [_FLOAT]
_SIGNATURES = {
    # y, x, weight, scales, norm weight, residual; rows of x, out_features, in_features; is gated,
    # eps, threads
    **dict.fromkeys(
        ("linear_bf16", "linear_int8", "linear_int4"),
        [_POINTER] * 6 + [_SIZE] * 3 + [_INT, _FLOAT, _INT],
    ),
    # packed, scales, weight; out_features, in_features; threads
    "quantize_int8": [_POINTER] * 3 + [_SIZE] * 2 + [_INT],
    "quantize_int4": [_POINTER] * 3 + [_SIZE] * 2 + [_INT],
    # out, q, k_cache, v_cache, block stride; cu_seqlens_q, seq_lens, block_table, its stride;
    # sequences, heads, kv heads, head_dim, block size; scale, threads
    "paged_attention": [*_ATTENTION, _INT],
    # The arguments of paged_attention with qkv for q, up to the scale; norm weights of queries and
    # of keys, eps; cos_sin, positions, slots; rows of cos_sin, blocks, tokens; threads
    "fused_attention": [*_ATTENTION, *[_POINTER] * 2, _FLOAT, *[_POINTER] * 3, *[_SIZE] * 3, _INT],
    # y, x, weight; rows, heads, row stride, head stride, size; eps, threads
    "rms_norm": [_POINTER] * 3 + [_SIZE] * 5 + [_FLOAT, _INT],
    # q out, k out, q, k, cos_sin, positions; rows of cos_sin, tokens, heads, kv heads, head_dim,
    # strides of q and k; threads
    "rope": [_POINTER] * 6 + [_SIZE] * 7 + [_INT],
    # y, gate_up; tokens, size; threads
    "silu_and_mul": [_POINTER] * 2 + [_SIZE] * 2 + [_INT],
    # k, v, k_cache, v_cache, slots; tokens, width and strides of k, v and blocks in bytes, block
    # size, blocks
    "store_kv": [_POINTER] * 5 + [_SIZE] * 7,
}
# Functions that are not named here return nothing.
_RESULTS = {
    **dict.fromkeys(("linear_bf16", "linear_int8", "linear_int4"), _INT),
    **dict.fromkeys(("paged_attention", "fused_attention"), _INT),
    **dict.fromkeys(("rope", "store_kv"), _SIZE),
}


def why_not(dtype: torch.dtype, device: torch.device) -> str | None:
    """Returns None if the kernels run for this dtype on this device, else the reason."""
    if device.type != "cpu":
        return f"needs a CPU, this is {device.type}"
    if dtype is not torch.bfloat16:
        return f"computes in bfloat16, not in {str(dtype).removeprefix('torch.')}"
    loaded = _load()
    return loaded if isinstance(loaded, str) else None


def failure() -> str | None:
    """Returns why there is no library on a machine whose CPU could run it.

    Returns:
        None if the library is loaded, or if this CPU could not run it.
    """
    loaded = _load()
    if not isinstance(loaded, str):
        return None
    try:
        check_machine()
    except NativeUnavailable:
        return None
    return loaded


def library() -> ctypes.CDLL:
    """Returns the library.

    Raises:
        NativeUnavailable: The library cannot be compiled or loaded; see `why_not`.
    """
    loaded = _load()
    if isinstance(loaded, str):
        raise NativeUnavailable(loaded)
    return loaded


@cache
def _load() -> ctypes.CDLL | str:
    """Returns the library, or why there is none; tried once in a process."""
    try:
        check_machine()
        loaded = ctypes.CDLL(str(built_library()))
    except (NativeUnavailable, OSError) as error:
        return str(error)
    for name, arguments in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.argtypes = arguments
        function.restype = _RESULTS.get(name)
    return loaded
