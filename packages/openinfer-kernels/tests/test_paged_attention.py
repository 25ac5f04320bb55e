from collections import namedtuple

import pytest
import torch

from openinfer_kernels import (
    BackendUnavailable,
    FusedAttentionSpec,
    PagedAttentionSpec,
    plan_fused_attention,
    plan_paged_attention,
)

BLOCK_SIZE = 16
Sequences = namedtuple(
    "Sequences", "cu_seqlens_q, seq_lens, block_table, max_seqlen_q, max_seqlen_k"
)
# Triton's interpreter converts loaded loop bounds in a way that numpy has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
# Queries and length of each sequence.
STEPS = {
    "prefill": [(37, 37)],
    "ragged-prefill": [(5, 5), (33, 33), (1, 1), (16, 16)],
    "after-a-prefix": [(9, 41), (17, 33)],
    "decode": [(1, 1), (1, 16), (1, 17), (1, 70)],
    "mixed": [(1, 40), (20, 20), (1, 3), (4, 36)],
    "padding": [(1, 12), (0, 0), (1, 33)],
    "padding-at-the-end": [(1, 12), (0, 0), (0, 0)],
    "a-row-for-padding": [(1, 12), (1, 0)],
}
HEADS = {"H4-K4-D32": (4, 4, 32), "H4-K2-D64": (4, 2, 64), "H7-K1-D64": (7, 1, 64)}
WIDE_HEADS = {"H8-K2-D128": (8, 2, 128), "H5-K5-D128": (5, 5, 128)}


def _problem(heads, step, dtype, random):
    num_heads, num_kv_heads, head_dim = heads
    spec = PagedAttentionSpec(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=BLOCK_SIZE,
        scale=head_dim**-0.5,
        dtype=dtype,
    )
    counts = [-(-length // BLOCK_SIZE) for _, length in step]
    num_blocks = sum(counts) + 3
    # Layer 1 of three, keys and values separate, blocks in random order: as in the runtime's arena.
    arena = random(num_blocks, 3, 2, BLOCK_SIZE, num_kv_heads, head_dim, dtype=dtype)
    blocks = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(1)).tolist()
    table = torch.zeros(len(step), max(counts), dtype=torch.int32)
    for row, (count, (_, length)) in enumerate(zip(counts, step, strict=True)):
        mine = [blocks.pop() for _ in range(count)]
        table[row, :count] = torch.tensor(mine, dtype=torch.int32)
        if length % BLOCK_SIZE:
            arena[mine[-1], :, :, length % BLOCK_SIZE :] = float("nan")
    queries = torch.tensor([0] + [count for count, _ in step])
    return spec, (
        random(int(queries.sum()), num_heads, head_dim, dtype=dtype),
        arena[:, 1, 0],
        arena[:, 1, 1],
        queries.cumsum(0).to(torch.int32),
        torch.tensor([length for _, length in step], dtype=torch.int32),
        table,
        max(count for count, _ in step),
        max(length for _, length in step),
    )


def _plan(spec, device, backend):
    """Returns the op over the inputs of `_problem`."""
    attend = plan_paged_attention(spec, device, backend)
    return lambda q, k_cache, v_cache, *step: attend(q, k_cache, v_cache, Sequences(*step))


def _to(device, inputs):
    # Keeps the strides, so that a view of the arena remains a view.
    def move(x):
        if not isinstance(x, torch.Tensor):
            return x
        moved = torch.zeros(0, dtype=x.dtype, device=device)
        storage = x.untyped_storage().to(device=device) if device != "cpu" else x.untyped_storage()
        return moved.set_(storage, x.storage_offset(), x.shape, x.stride())

    return [move(x) for x in inputs]


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("backend", ["native", "cpu", "torch"])
def test_paged_attention(backend, step, heads, dtype, random, assert_close):
    spec, inputs = _problem(heads, step, dtype, random)
    got = _plan(spec, "cpu", backend)(*inputs)
    assert_close(got, _plan(spec, "cpu", "reference")(*inputs))


@pytest.mark.parametrize("heads", WIDE_HEADS.values(), ids=WIDE_HEADS)
@pytest.mark.parametrize("backend", ["native", "cpu", "torch"])
def test_paged_attention_of_wide_heads(backend, heads, dtype, random, assert_close):
    spec, inputs = _problem(heads, STEPS["mixed"], dtype, random)
    got = _plan(spec, "cpu", backend)(*inputs)
    assert_close(got, _plan(spec, "cpu", "reference")(*inputs))


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_triton(step, heads, random, assert_close, triton_device, dtype):
    if dtype is torch.bfloat16 and triton_device == "cpu":
        pytest.skip("the interpreter multiplies bf16 matrices wrongly")
    spec, inputs = _problem(heads, step, dtype, random)
    expected = _plan(spec, "cpu", "reference")(*inputs)
    got = _plan(spec, triton_device, "triton")(*_to(triton_device, inputs))
    assert_close(got, expected)


@pytest.mark.parametrize("length", [512, 600, 1100])
def test_triton_decode_of_long_sequences_splits_them(length, random, assert_close, triton_device):
    step = [(1, length), (1, 3)]
    spec, inputs = _problem((2, 1, 32), step, torch.float32, random)
    expected = _plan(spec, "cpu", "reference")(*inputs)
    got = _plan(spec, triton_device, "triton")(*_to(triton_device, inputs))
    assert_close(got, expected)


@pytest.mark.long
@pytest.mark.parametrize(
    "step",
    [
        [(5, 600), (1, 3), (2, 1030)],
        [(0, 0), (16, 900), (0, 0)],
        [(1, 40), (150, 170), (1, 1), (33, 64), (0, 0)],
    ],
    ids=["split", "split-and-padded", "tiles"],
)
def test_triton_tiles_find_their_sequences(step, random, assert_close, triton_device):
    spec, inputs = _problem((4, 2, 32), step, torch.float32, random)
    expected = _plan(spec, "cpu", "reference")(*inputs)
    # Pads sequences and tokens: the host knows upper bounds only.
    q, k, v, begins, lengths, table, max_q, max_k = inputs
    total = q.shape[0]
    q = torch.cat((q, random(7, *q.shape[1:], dtype=q.dtype)))
    begins = torch.cat((begins, torch.full((3,), total, dtype=torch.int32)))
    lengths = torch.cat((lengths, torch.zeros(3, dtype=torch.int32)))
    table = torch.cat((table, torch.zeros(3, table.shape[1], dtype=torch.int32)))
    padded = (q, k, v, begins, lengths, table, max_q + 9, max_k + 4000)
    got = _plan(spec, triton_device, "triton")(*_to(triton_device, padded))
    assert_close(got[:total], expected)


@pytest.mark.parametrize("backend", ["native", "cpu"])
@pytest.mark.parametrize("length", [511, 513, 1100, 2600])
def test_a_long_decode_is_attended_in_stretches(backend, length, random):
    step = [(1, length), (1, 3), (5, 40)]
    spec, inputs = _problem((4, 2, 32), step, torch.bfloat16, random)
    expected = _plan(spec, "cpu", "reference")(*inputs).float()
    got = _plan(spec, "cpu", backend)(*inputs).float()
    # Averages of thousands of values are small, so errors are relative to the size of a row.
    error = (got - expected).abs().amax(dim=(1, 2)) / expected.square().mean(dim=(1, 2)).sqrt()
    assert error.max() < 0.02, error


@pytest.mark.parametrize("backend", ["native", "cpu", "torch"])
@pytest.mark.parametrize("length", [257, 600, 1100, 2600])
def test_a_long_decode_sees_every_token(backend, length, random):
    """Each sequence attends to one token: the ends of sequences, blocks and chunks."""
    sought = [0, 15, 16, 255, 256, 257, 511, 512, length // 2, length - 17, length - 2, length - 1]
    sought = sorted({token for token in sought if token < length})
    spec, inputs = _problem((4, 2, 32), [(1, length)] * len(sought), torch.bfloat16, random)
    q, k_cache, v_cache, _, _, table, _, _ = inputs
    q.copy_(q[:, ::2].sign().repeat_interleave(2, dim=1))
    for row, token in enumerate(sought):
        block, offset = int(table[row, token // BLOCK_SIZE]), token % BLOCK_SIZE
        # Its score is far above all others, so its values are the output.
        k_cache[block, offset] = q[row, ::2] * 4
    got = _plan(spec, "cpu", backend)(*inputs)
    for row, token in enumerate(sought):
        block, offset = int(table[row, token // BLOCK_SIZE]), token % BLOCK_SIZE
        expected = v_cache[block, offset].repeat_interleave(2, dim=0)
        torch.testing.assert_close(got[row], expected, rtol=0.02, atol=0.02, msg=f"token {token}")


@pytest.mark.parametrize("backend", ["native", "cpu"])
def test_blocks_of_another_size(backend, random, assert_close, monkeypatch):
    for block_size in (1, 7, 24, 64):
        monkeypatch.setitem(globals(), "BLOCK_SIZE", block_size)
        spec, inputs = _problem((4, 2, 64), STEPS["mixed"], torch.bfloat16, random)
        expected = _plan(spec, "cpu", "reference")(*inputs)
        assert_close(_plan(spec, "cpu", backend)(*inputs), expected)


@pytest.mark.parametrize("backend", ["native"])
@pytest.mark.parametrize("step", ["decode", "prefill"])
def test_scores_far_from_zero_do_not_overflow(backend, step, random, assert_close):
    spec, inputs = _problem((4, 2, 64), STEPS[step], torch.bfloat16, random)
    inputs = (inputs[0] * 100, *inputs[1:])
    expected = _plan(spec, "cpu", "reference")(*inputs)
    assert expected.isfinite().all()
    assert_close(_plan(spec, "cpu", backend)(*inputs), expected)


@pytest.mark.parametrize("backend", ["native", "cpu"])
@pytest.mark.parametrize("poisoned", ["q", "k", "v"])
@pytest.mark.parametrize("token", [0, 15, 16, 69, 299])
@pytest.mark.parametrize("num_queries", [1, 3])
def test_nan_in_an_input_is_nan_in_the_output(backend, num_queries, poisoned, token, random):
    """NaN must reach the sampler, which refuses it, and not turn into a plausible row."""
    steps = [(num_queries, 300), (num_queries, 20)]
    spec, (q, k_cache, v_cache, *rest) = _problem((4, 2, 64), steps, torch.bfloat16, random)
    # Takes the sequence's last query, which attends to every token.
    inputs, last = (q, k_cache, v_cache, *rest), num_queries - 1
    q, table = q[last:], rest[2]
    slot = int(table[0, token // BLOCK_SIZE]), token % BLOCK_SIZE
    {"q": q[0, 2:], "k": k_cache[(*slot, 1)], "v": v_cache[(*slot, 1)]}[poisoned][..., 5] = (
        torch.nan
    )
    got = _plan(spec, "cpu", backend)(*inputs)[last::num_queries]
    # Query heads 2 and 3 read the second key head, which is poisoned.
    lost = got[0, 2:, 5] if poisoned == "v" else got[0, 2:]
    assert lost.isnan().all()
    assert got[0, :2].isfinite().all()
    assert got[1].isfinite().all()


def test_a_long_prefill_is_attended_in_chunks(random, assert_close):
    spec, inputs = _problem((2, 1, 32), [(300, 330)], torch.float32, random)
    expected = _plan(spec, "cpu", "torch")(*inputs)
    assert_close(_plan(spec, "cpu", "cpu")(*inputs), expected)


def test_heads_must_divide():
    with pytest.raises(ValueError, match="num_heads 5 is no multiple of num_kv_heads 2"):
        PagedAttentionSpec(
            num_heads=5, num_kv_heads=2, head_dim=64, block_size=16, scale=1.0, dtype=torch.float32
        )


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan")])
def test_the_scale_is_positive(scale):
    with pytest.raises(ValueError, match=f"scale must be positive, got {scale}"):
        PagedAttentionSpec(
            num_heads=2,
            num_kv_heads=2,
            head_dim=64,
            block_size=16,
            scale=scale,
            dtype=torch.float32,
        )


def test_triton_refuses_other_heads():
    spec = PagedAttentionSpec(
        num_heads=2, num_kv_heads=2, head_dim=80, block_size=16, scale=1.0, dtype=torch.float32
    )
    with pytest.raises(BackendUnavailable, match="got 80"):
        plan_paged_attention(spec, "cuda", "triton")


@pytest.mark.parametrize("head_dim", [80, 96])
def test_a_gpu_without_a_kernel_for_these_heads_is_refused(head_dim):
    """The back end in torch would gather whole caches: tens of gigabytes in every layer."""
    spec = PagedAttentionSpec(
        num_heads=32,
        num_kv_heads=8,
        head_dim=head_dim,
        block_size=16,
        scale=1.0,
        dtype=torch.bfloat16,
    )
    for plan in (
        lambda: plan_paged_attention(spec, "cuda"),
        lambda: plan_fused_attention(FusedAttentionSpec(attention=spec), "cuda"),
    ):
        with pytest.raises(BackendUnavailable, match=f"head_dim .* got {head_dim}"):
            plan()
    # The back end `torch` runs if it is asked for by name, as an oracle for small caches.
    assert plan_paged_attention(spec, "cuda", "torch") is not None
