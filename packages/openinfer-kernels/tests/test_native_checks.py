"""Native ops refuse tensors that they were not planned for."""

from types import SimpleNamespace

import pytest
import torch

from openinfer_kernels import (
    FusedAttentionSpec,
    FusedLinearSpec,
    LinearSpec,
    PagedAttentionSpec,
    RMSNormSpec,
    RopeSpec,
    SiluAndMulSpec,
    StoreKVSpec,
    plan_fused_attention,
    plan_fused_linear,
    plan_linear,
    plan_paged_attention,
    plan_rms_norm,
    plan_rope,
    plan_silu_and_mul,
    plan_store_kv,
)
from openinfer_kernels.native import why_not

REASON = why_not(torch.bfloat16, torch.device("cpu"))
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"no native kernels: {REASON}")
DTYPE = torch.bfloat16
HEADS = {"num_kv_heads": 2, "head_dim": 32, "dtype": DTYPE}


def zeros(*shape, dtype=DTYPE):
    return torch.zeros(shape, dtype=dtype)


def indices(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype)


def linear():
    spec = LinearSpec(in_features=64, out_features=16, dtype=DTYPE)
    product = plan_linear(spec, "cpu", "native")
    return product, [zeros(2, 64), product.pack(zeros(16, 64))]


def fused_linear():
    linear = LinearSpec(in_features=64, out_features=32, dtype=DTYPE)
    spec = FusedLinearSpec(linear=linear, norm_eps=1e-6, is_gated=True, adds_residual=True)
    product = plan_fused_linear(spec, "cpu", "native")
    return product, [zeros(2, 64), product.pack(zeros(32, 64)), zeros(64), zeros(2, 16)]


def rms_norm():
    spec = RMSNormSpec(hidden_size=64, eps=1e-6, dtype=DTYPE)
    return plan_rms_norm(spec, "cpu", "native"), [zeros(2, 64), zeros(64)]


def silu_and_mul():
    spec = SiluAndMulSpec(intermediate_size=32, dtype=DTYPE)
    return plan_silu_and_mul(spec, "cpu", "native"), [zeros(2, 64)]


def rope():
    op = plan_rope(RopeSpec(num_heads=4, **HEADS), "cpu", "native")
    table = zeros(8, 32, dtype=torch.float32)
    return op, [zeros(2, 4, 32), zeros(2, 2, 32), table, indices(0, 7)]


def store_kv():
    op = plan_store_kv(StoreKVSpec(block_size=16, **HEADS), "cpu", "native")
    caches = [zeros(3, 16, 2, 32), zeros(3, 16, 2, 32)]
    return op, [zeros(2, 2, 32), zeros(2, 2, 32), *caches, indices(0, 47)]


def paged_attention():
    spec = PagedAttentionSpec(num_heads=4, block_size=16, scale=1.0, **HEADS)
    caches = [zeros(3, 16, 2, 32), zeros(3, 16, 2, 32)]
    lengths = [indices(0, 1, dtype=torch.int32), indices(20, dtype=torch.int32)]
    table = indices([0, 2], dtype=torch.int32)
    op = plan_paged_attention(spec, "cpu", "native")

    def call(q, k_cache, v_cache, cu_seqlens_q, seq_lens, block_table):
        step = Step(cu_seqlens_q=cu_seqlens_q, seq_lens=seq_lens, block_table=block_table)
        return op(q, k_cache, v_cache, step)

    return call, [zeros(1, 4, 32), *caches, *lengths, table]


class Step(SimpleNamespace):
    """The fields of a step that `fused_attention` reads."""

    max_seqlen_q, max_seqlen_k = 1, 20


STEP = {
    "positions": indices(19),
    "slot_mapping": indices(35),
    "cu_seqlens_q": indices(0, 1, dtype=torch.int32),
    "seq_lens": indices(20, dtype=torch.int32),
    "block_table": indices([0, 2], dtype=torch.int32),
}


def fused_attention():
    attention = PagedAttentionSpec(num_heads=4, block_size=16, scale=1.0, **HEADS)
    spec = FusedAttentionSpec(attention=attention, norm_eps=1e-6)
    op = plan_fused_attention(spec, "cpu", "native")

    def call(qkv, q_norm, k_norm, cos_sin, k_cache, v_cache, *step):
        rows = Step(**dict(zip(STEP, step, strict=True)))
        return op(qkv, (q_norm, k_norm), cos_sin, rows, k_cache, v_cache)

    caches = [zeros(3, 16, 2, 32), zeros(3, 16, 2, 32)]
    table = zeros(32, 32, dtype=torch.float32)
    return call, [zeros(1, 8, 32), zeros(32), zeros(32), table, *caches, *STEP.values()]


OPS = [
    linear,
    fused_linear,
    fused_attention,
    rms_norm,
    silu_and_mul,
    rope,
    store_kv,
    paged_attention,
]


def half_as_wide(x):
    return x[..., : x.shape[-1] // 2].contiguous()


def transposed(x):
    return x.mT.contiguous().mT if x.dim() > 1 else x.repeat_interleave(2)[::2]


def of_another_dtype(x):
    return x.double()


def elsewhere(x):
    return x.to("meta")


@pytest.mark.parametrize("fault", [half_as_wide, transposed, of_another_dtype, elsewhere])
@pytest.mark.parametrize("op", OPS)
def test_every_tensor_is_checked(op, fault):
    call, arguments = op()
    call(*arguments)
    for index, argument in enumerate(arguments):
        if isinstance(argument, int):
            continue
        if isinstance(argument, tuple):
            changed = tuple(fault(part) for part in argument)
            # A packed weight is checked by its size alone.
            if fault is not half_as_wide:
                continue
        else:
            changed = fault(argument)
        if op is paged_attention and index == 0 and fault is transposed:
            continue  # made contiguous
        if fault is transposed and isinstance(changed, torch.Tensor) and changed.is_contiguous():
            continue
        # A narrower table only lowers the bound; half of a one-element length is not a case.
        is_table = (op, index) in {(paged_attention, 5), (fused_attention, 10)}
        if is_table and fault is half_as_wide:
            continue
        # fused_linear runs the class of `linear`, which names itself in errors.
        name = "linear" if op is fused_linear else op.__name__
        with pytest.raises(ValueError, match=f"^{name} takes "):
            call(*arguments[:index], changed, *arguments[index + 1 :])


@pytest.mark.parametrize("position", [8, -1, 2**40])
def test_positions_beyond_the_table_are_refused(position):
    call, arguments = rope()
    with pytest.raises(ValueError, match=f"position {position} is not in a table of 8"):
        call(*arguments[:3], indices(0, position))


@pytest.mark.parametrize(
    ("index", "value", "reason"),
    [(6, 32, "position 32 is not in a table of 32"), (7, 48, "slot 48 is not in a cache of 48")],
)
def test_fused_attention_refuses_what_is_beyond_and_writes_nothing(index, value, reason):
    call, arguments = fused_attention()
    arguments[0] += 1
    arguments[index] = indices(value)
    with pytest.raises(ValueError, match=f"^fused_attention: {reason}"):
        call(*arguments)
    assert not arguments[4].any()
    assert not arguments[5].any()


def test_what_a_fused_product_is_not_made_for_is_refused():
    call, (x, packed, norm, residual) = fused_linear()
    with pytest.raises(ValueError, match="takes a norm_weight"):
        call(x, packed, None, residual)
    with pytest.raises(ValueError, match="takes a residual"):
        call(x, packed, norm)
    call, (x, packed) = linear()
    with pytest.raises(ValueError, match="takes a norm_weight"):
        call(x, packed, norm)
    with pytest.raises(ValueError, match="takes a residual"):
        call(x, packed, None, residual)


@pytest.mark.parametrize("slot", [48, -1, 2**40])
def test_slots_beyond_the_cache_are_refused_and_nothing_is_written(slot):
    call, (k, v, k_cache, v_cache, _) = store_kv()
    with pytest.raises(ValueError, match=f"slot {slot} is not in a cache of 48 slots"):
        call(k + 1, v + 1, k_cache, v_cache, indices(0, slot))
    assert not k_cache.any()
    assert not v_cache.any()


def test_a_stored_weight_is_checked_before_it_is_packed():
    for quantization in (None, "int8", "int4"):
        spec = LinearSpec(in_features=64, out_features=16, dtype=DTYPE, quantization=quantization)
        product = plan_linear(spec, "cpu", "native")
        for weight in (zeros(16, 32), zeros(64, 16).T, zeros(16, 64, dtype=torch.float32)):
            with pytest.raises(ValueError, match="linear takes a weight"):
                product.pack(weight)
