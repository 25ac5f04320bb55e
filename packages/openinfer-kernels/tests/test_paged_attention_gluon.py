"""The prefill kernel for Hopper, which no interpreter runs, and the choice of it."""

from collections import namedtuple
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from openinfer_kernels import PagedAttentionSpec, plan_paged_attention
from openinfer_kernels.ops.paged_attention._gluon_prefill import GluonPrefillLauncher, why_not_gluon

HEAD_DIM = 128
Sequences = namedtuple(
    "Sequences", "cu_seqlens_q, seq_lens, block_table, max_seqlen_q, max_seqlen_k"
)
# Queries and length of each sequence.
STEPS = {
    "a-tile": [(128, 128)],
    "prefill": [(777, 777)],
    "after-a-prefix": [(300, 1300), (32, 4096)],
    "ragged": [(5, 5), (33, 33), (1, 1), (16, 16), (150, 170), (64, 64)],
    "mixed": [(1, 40), (200, 520), (1, 3), (4, 36), (1, 1024)],
    "padding": [(1, 12), (0, 0), (40, 40), (1, 0)],
}


def _spec(heads=(32, 8), block_size=16, dtype=torch.bfloat16):
    return PagedAttentionSpec(
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=HEAD_DIM,
        block_size=block_size,
        scale=HEAD_DIM**-0.5,
        dtype=dtype,
    )


def _problem(spec, step, layers=3):
    """Returns the op's inputs: the middle layer of an arena, with NaN after each last key."""
    generator = torch.Generator("cuda").manual_seed(1)
    size = spec.block_size
    counts = [-(-length // size) for _, length in step]
    shape = (sum(counts) + 3, layers, 2, size, spec.num_kv_heads, HEAD_DIM)
    arena = torch.empty(shape, dtype=spec.dtype, device="cuda")
    middle = arena[:, layers // 2]
    middle.copy_(torch.randn(middle.shape, generator=generator, device="cuda"))
    blocks = torch.randperm(len(arena), generator=torch.Generator().manual_seed(1)).tolist()
    table = torch.zeros(len(step), max(*counts, 1), dtype=torch.int32)
    for row, (count, (_, length)) in enumerate(zip(counts, step, strict=True)):
        mine = [blocks.pop() for _ in range(count)]
        table[row, :count] = torch.tensor(mine, dtype=torch.int32)
        if length % size:
            middle[mine[-1], :, length % size :] = float("nan")
    queries = torch.tensor([0] + [count for count, _ in step]).cumsum(0)
    shape = (int(queries[-1]), spec.num_heads, HEAD_DIM)
    q = torch.randn(shape, generator=generator, device="cuda").to(spec.dtype)
    lengths = torch.tensor([length for _, length in step], dtype=torch.int32)
    cache = (middle[:, 0], middle[:, 1], queries.to(torch.int32), lengths, table)
    return q, tuple(x.cuda() for x in cache)


def _attend(spec, q, cache):
    out = torch.full_like(q, float("nan"))
    GluonPrefillLauncher(spec)(q, cache, out, len(q), 4096)
    return out


def _expected(spec, q, cache):
    k_cache, v_cache, begins, lengths, table = cache
    bounds = int(begins.diff().max()), int(lengths.max())
    wide = plan_paged_attention(replace(spec, dtype=torch.float32), "cuda", "torch")
    step = Sequences(begins, lengths, table, *bounds)
    out = wide(q.float(), k_cache.float(), v_cache.float(), step)
    return out.to(spec.dtype)


def _use_gpu(monkeypatch, capability):
    major, minor = capability
    properties = SimpleNamespace(major=major, minor=minor, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)


@pytest.fixture
def _hopper():
    reason = why_not_gluon(_spec(), torch.device("cuda"))
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.gpu
@pytest.mark.usefixtures("_hopper")
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("heads", [(32, 8), (8, 8)])
def test_equals_attention_by_torch(heads, step, assert_close):
    spec = _spec(heads)
    q, cache = _problem(spec, step)
    assert_close(_attend(spec, q, cache), _expected(spec, q, cache))


@pytest.mark.gpu
@pytest.mark.usefixtures("_hopper")
@pytest.mark.parametrize(("block_size", "dtype"), [(16, torch.float16), (128, torch.bfloat16)])
def test_blocks_of_other_sizes_and_types(block_size, dtype, assert_close):
    spec = _spec(block_size=block_size, dtype=dtype)
    q, cache = _problem(spec, STEPS["mixed"])
    assert_close(_attend(spec, q, cache), _expected(spec, q, cache))


@pytest.mark.gpu
@pytest.mark.usefixtures("_hopper")
def test_a_recorded_step_serves_other_lengths(assert_close):
    spec = _spec()
    q, cache = _problem(spec, [(300, 300), (200, 900), (12, 12)])
    attend = plan_paged_attention(spec, "cuda")
    step = Sequences(*cache[2:], len(q), 4096)
    attend(q, *cache[:2], step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend(q, *cache[:2], step)
    _, begins, lengths = cache[1:4]
    begins.copy_(torch.tensor([0, 1, 500, 512]))
    lengths.copy_(torch.tensor([290, 700, 12]))
    graph.replay()
    assert_close(out, _expected(spec, q, cache))
    assert torch.equal(out, _attend(spec, q, cache)), "another kernel was recorded"


@pytest.mark.gpu
@pytest.mark.usefixtures("_hopper")
def test_a_cache_beyond_2_to_31_elements(assert_close):
    spec = _spec()
    q, cache = _problem(spec, [(300, 31_000)], layers=36)
    assert cache[0].stride(0) * len(cache[0]) > 2**31
    # Blocks are in random order, so the whole range of the cache is read.
    assert_close(_attend(spec, q, cache), _expected(spec, q, cache))


def test_other_devices_heads_and_blocks_take_the_other_kernel(monkeypatch):
    assert "capability 9" in why_not_gluon(_spec(), torch.device("cpu"))
    device = torch.device("cuda")
    for capability, words in [((8, 0), "capability 9"), ((10, 0), "capability 9"), ((9, 0), None)]:
        _use_gpu(monkeypatch, capability)
        reason = why_not_gluon(_spec(), device)
        assert reason is None if words is None else words in reason
    assert "16 bits" in why_not_gluon(_spec(dtype=torch.float32), device)
    assert "group" in why_not_gluon(_spec(heads=(40, 8)), device)
    assert "blocks" in why_not_gluon(_spec(block_size=8), device)
    monkeypatch.setattr("triton.__version__", "3.9.0")
    assert "Triton 3.6" in why_not_gluon(_spec(), device)


def test_few_tokens_and_many_sequences_take_the_other_kernel():
    # A tile is 32 queries of 4 heads each, for 8 key heads.
    launch = GluonPrefillLauncher(_spec())
    assert launch.fills_tiles(256, 1)
    assert launch.fills_tiles(1024, 32)
    assert not launch.fills_tiles(255, 1)
    assert not launch.fills_tiles(1024, 33)
    assert not launch.fills_tiles(2048, 512)
