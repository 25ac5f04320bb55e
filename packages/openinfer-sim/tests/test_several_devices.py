"""Models that do not fit one device, and replicas of several devices.

Nothing here was measured. Sizes follow from published configurations, and times must be at least
what bytes and FLOP alone require.
"""

import pytest
from msgspec.structs import replace

from openinfer_sim import (
    CostModel,
    RequestMix,
    Segment,
    Session,
    Setup,
    SimError,
    Trace,
    Turn,
    closed_trace,
    find_device,
    find_model,
    load_figures,
    simulate,
)

_V4, _K2 = "deepseek-v4-flash", "kimi-k2"
_FLOOR_RATE = 4.3e12
"""Bytes per second that the lower bounds below assume."""


def _v4_layer_params():
    """Returns the parameters by the published configuration, matrix by matrix, without experts."""
    hidden, head = 4096, 512
    query = hidden * 1024 + 1024 + 1024 * 64 * head + 64
    attention = query + hidden * head + head + 4096 * 8 * 1024 + 8 * 1024 * hidden
    streams = 2 * (24 * 4 * hidden + 24 + 3)
    layer = attention + 2 * hidden + streams + 3 * hidden * 2048 + 256 * hidden
    fine = 2 * hidden * 2 * head + 4 * 2 * head + head
    indexer = 1024 * 64 * 128 + hidden * 64 + 2 * hidden * 2 * 128 + 4 * 2 * 128 + 128
    coarse = 2 * hidden * head + 128 * head + head
    return 43 * layer + 40 * 256 + 21 * (fine + indexer) + 20 * coarse + hidden + 4 * 4 * hidden + 5


def _k2_layer_params():
    """Returns the parameters by the published configuration, matrix by matrix, without experts."""
    hidden = 7168
    query = hidden * 1536 + 1536 + 1536 * 64 * 192
    latent = hidden * 576 + 512 + 512 * 64 * 256
    layer = query + latent + 64 * 128 * hidden + 2 * hidden
    mixture = 3 * hidden * 2048 + 384 * hidden + 384
    return 61 * layer + 3 * hidden * 18_432 + 60 * mixture + hidden


@pytest.mark.parametrize(
    ("name", "layer_params", "head_params", "total", "active", "gigabytes"),
    [
        (_V4, _v4_layer_params(), 129_280 * 4096, 284e9, 13e9, 156.0),
        (_K2, _k2_layer_params(), 163_840 * 7168, 1.026e12, 32e9, 594.2),
    ],
)
def test_the_sizes_are_those_of_the_published_configuration(
    name, layer_params, head_params, total, active, gigabytes
):
    model = find_model(name)
    experts = model.experts
    routed = experts.num_layers * experts.num_experts * experts.num_params
    assert model.num_layer_params == layer_params
    assert model.num_head_params == head_params
    assert model.num_resident_params == layer_params + routed + 2 * head_params
    assert model.num_resident_params == pytest.approx(total, rel=0.002)
    assert model.num_active_params + head_params == pytest.approx(active, rel=0.03)
    assert model.resident_bytes / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_what_a_token_leaves_in_each_group():
    c4, c128, window = find_model(_V4).cache_groups(16)
    entries = [sum(plane.bytes_per_token for plane in g.planes) for g in (c4, c128, window)]
    assert entries == [21 * (512 + 128) * 2, 20 * 512 * 2, 43 * 512 * 2]
    assert [1 / g.entries_per_token for g in (c4, c128, window)] == [4, 128, 1]
    assert [g.tokens_per_block for g in (c4, c128, window)] == [16, 128, 16]
    assert (window.kind, window.window) == ("window", 128)
    assert find_model(_V4).kv_bytes_per_token == entries[0] / 4 + entries[1] / 128
    (latent,) = find_model(_K2).cache_groups(16)
    assert latent.bytes_per_block == 16 * 61 * 576 * 2


# Milliseconds in which 1, 8, 32, 64 and 128 rows can read the weights that they need, by number of
# devices. Experts are drawn evenly. Calculated at 4.3 TB/s, without this package.
def test_a_query_pays_for_the_entries_that_it_reads_whatever_its_prompt_has():
    """A row reads 128 entries in each of 43 layers and 512 in 21 of them, of 1,024 bytes each."""
    num_entries = 128 * 43 + 512 * 21
    h200, overheads = find_device("h200"), load_figures().overheads
    model = find_model(_V4)
    free = replace(model, kv_read_bytes_per_row=0, attention_flops_per_query=0)
    costs, without = (CostModel(each, h200, overheads) for each in (model, free))
    read_s = num_entries * 1024 / (overheads.decode_attention_share * h200.read_bytes_per_s)
    for keys in (0, 100_000):
        assert costs.decode_s(8, keys) - without.decode_s(8, keys) == pytest.approx(8 * read_s)
    query_s = num_entries * 2 * 64 * 1024 / (overheads.attention_share * h200.attention_flops)
    more_s = costs.prefill_s(1000, 10**9, 0) - without.prefill_s(1000, 10**9, 0)
    assert more_s == pytest.approx(1000 * query_s)


@pytest.mark.parametrize(
    ("name", "num_devices", "floors"),
    [(_V4, 4, (0.63, 1.91, 4.98, 7.11, 8.57)), (_K2, 8, (0.96, 3.19, 8.75, 12.9, 16.1))],
)
def test_a_step_reads_the_experts_its_tokens_reach(name, num_devices, floors):
    rank = find_model(name).of_rank(num_devices)
    read = [1e3 * rank.weight_bytes(num) / _FLOOR_RATE for num in (1, 8, 32, 64, 128)]
    assert read == pytest.approx(floors, rel=0.04)


@pytest.mark.parametrize(
    ("name", "device", "too_few", "enough"),
    [(_V4, "h200", 1, 2), (_V4, "h100", 2, 4), (_V4, "rtx-5090", 4, 8), (_K2, "h200", 4, 8)],
)
def test_several_devices_hold_what_fewer_do_not(name, device, too_few, enough):
    hint = f"--tensor-parallel-size {enough} is enough"
    with pytest.raises(SimError, match=f"{name} leaves no memory.*{device}.*{hint}"):
        Setup(model=name, device=device, tensor_parallel_size=too_few)
    assert Setup(model=name, device=device, tensor_parallel_size=enough).num_cache_tokens > 500_000


def test_a_cache_of_a_given_size_makes_no_room_for_weights():
    with pytest.raises(SimError, match="--tensor-parallel-size 2"):
        Setup(model=_V4, kv_cache_bytes=10 << 30)


def test_a_cache_that_holds_nothing_is_told_what_it_needs():
    limits = {"model": _V4, "tensor_parallel_size": 2}
    with pytest.raises(SimError, match="kv_cache_bytes 9 holds no block") as refused:
        Setup(**limits, kv_cache_bytes=9)
    least = int(str(refused.value).split()[-1])
    assert Setup(**limits, kv_cache_bytes=least).num_cache_tokens
    with pytest.raises(SimError, match=f"at least {least}"):
        Setup(**limits, kv_cache_bytes=least - 1)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"block_size": 1_000_000}, "block_size must be at most 262144, the positions of qwen3-4b"),
        (
            {"block_size": 200_000, "gpu_memory_utilization": 0.2},
            r"block_size 200000 is too large.* 29\.5 GB of cache.* 18\.7 GB",
        ),
        ({"max_num_seqs": 1.5}, "max_num_seqs must be a whole number of at least 1, not 1.5"),
        ({"block_size": "16"}, "block_size must be a whole number"),
        ({"tensor_parallel_size": 2.0}, "tensor_parallel_size must be one of .* not 2.0"),
        ({"kv_cache_bytes": 10**16}, "31 bits: lower kv_cache_bytes"),
    ],
)
def test_sizes_that_make_no_sense_are_named(options, named):
    with pytest.raises(SimError, match=named):
        Setup(**options)


def test_what_no_host_holds_is_refused():
    with pytest.raises(SimError, match="--tensor-parallel-size 8 is not enough"):
        Setup(model=_K2, device="rtx-5090", tensor_parallel_size=8)
    with pytest.raises(SimError, match="one of 1, 2, 4, 8, not 3"):
        Setup(tensor_parallel_size=3)


@pytest.mark.parametrize(("name", "first"), [("qwen3-8b", 1), (_V4, 2), ("deepseek-v2-lite", 1)])
def test_more_devices_are_faster_but_not_by_as_much(name, first):
    costs = [Setup(model=name, tensor_parallel_size=n).cost_model() for n in (first, 2 * first)]
    for rows in (1, 32):
        one, two = (cost.decode_s(rows, rows * 1024) for cost in costs)
        assert one / 2 < two < one
    chunk = {"num_prefill_tokens": 8192, "num_prefill_pairs": 8192 * 8193 // 2}
    rest = {"num_prefill_rows": 1, "num_prefill_kv_tokens": 8192, "num_sampled": 1}
    none = {"num_decode_rows": 0, "num_decode_kv_tokens": 0}
    one, two = (cost.mixed_s(**chunk, **rest, **none) for cost in costs)
    assert one / 2 < two < one


def test_all_reduces_cost_latency_and_bytes():
    slow, fast = (
        Setup(model="qwen3-8b", device=device, tensor_parallel_size=2).cost_model()
        for device in ("rtx-5090", "h100")
    )
    one = Setup(model="qwen3-8b", device="rtx-5090").cost_model()
    assert slow.decode_s(1, 1) > one.decode_s(1, 1) / 2 + 72 * 40e-6
    # 72 ring all-reduces of 8,192 tokens of 4,096 bf16 numbers, over links of 50 and 370 GB/s
    sent = 72 * 8192 * 4096 * 2
    prefill = {"num_prefill_rows": 1, "num_prefill_tokens": 8192, "num_prefill_pairs": 0}
    rest = {"num_prefill_kv_tokens": 0, "num_sampled": 1}
    none = {"num_decode_rows": 0, "num_decode_kv_tokens": 0}
    assert slow.mixed_s(**prefill, **rest, **none) > sent / 50e9
    assert fast.mixed_s(**prefill, **rest, **none) > sent / 370e9


def test_heads_are_divided_and_a_latent_is_not():
    one, eight = (Setup(model="qwen3-8b", tensor_parallel_size=n) for n in (1, 8))
    assert eight.num_cache_tokens > 8 * one.num_cache_tokens  # and each device holds fewer weights
    shares = [find_model(_K2).of_rank(n).kv_bytes_per_token for n in (1, 8)]
    assert shares[0] == shares[1]
    assert find_model("qwen3_5-4b").of_rank(8).kv_bytes_per_token == 32_768 // 4


@pytest.mark.parametrize(("name", "num_devices"), [(_V4, 2), (_K2, 8), ("qwen3_5-4b", 8)])
def test_the_real_engine_runs_on_them(name, num_devices):
    trace = closed_trace(concurrency=4, requests=2, mix=RequestMix(input=700, output=20), seed=0)
    setup = Setup(model=name, tensor_parallel_size=num_devices)
    report = simulate(trace, setup=setup).report
    assert report.num_served == 8
    assert report.options["tensor_parallel_size"] == num_devices


def test_a_request_of_all_that_the_cache_holds_is_served():
    setup = Setup(
        model=_V4,
        tensor_parallel_size=2,
        kv_cache_bytes=100 * 2_150_400,
        max_num_seqs=8,
        max_num_batched_tokens=512,
    )
    assert setup.num_cache_tokens > 10_000
    turn = Turn(0.0, (Segment(1, setup.num_cache_tokens - 4),), 4)
    trace = Trace(name="one", sessions=(Session(session_id="a", start_s=0.0, turns=(turn,)),))
    assert simulate(trace, setup=setup).report.num_served == 1
