"""Hybrid model: blocks are as large as a state, and prefills stop where states are kept."""

import msgspec
import pytest

from openinfer_sim import Segment, Session, Setup, Trace, Turn, find_model, simulate

_MODEL = find_model("qwen3_5-4b")


# Bytes of one layer of published checkpoints: a recurrent state with its convolution inputs, and
# the keys and values of a token. vLLM chooses these block sizes for them, and LMCache lists them.
@pytest.mark.parametrize(
    ("state_bytes", "kv_bytes", "block"),
    [
        (16 * 128 * 128 * 4 + 6144 * 3 * 2, 2 * 2 * 256 * 2, 544),  # Qwen3.5-0.8B
        (48 * 128 * 128 * 4 + 10240 * 3 * 2, 2 * 4 * 256 * 2, 784),  # Qwen3.6-27B
    ],
)
def test_a_block_is_as_large_as_the_state_of_a_layer(state_bytes, kv_bytes, block):
    layers = {"num_layers": 4, "num_attention_layers": 1}
    sizes = {"kv_bytes_per_token": kv_bytes, "state_bytes": 3 * state_bytes}
    figures = msgspec.structs.replace(_MODEL, **layers, **sizes)
    assert figures.state_block == block
    for wanted, size in ((16, block), (block, block), (block + 1, 2 * block)):
        assert {group.tokens_per_block for group in figures.cache_groups(wanted)} == {size}


def test_the_sizes_are_those_of_the_checkpoint():
    assert _MODEL.state_bytes == 24 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)
    assert _MODEL.kv_bytes_per_token == 8 * 2 * 4 * 256 * 2
    assert _MODEL.state_block == 528


def test_states_take_memory_from_the_cache():
    setup = Setup(model="qwen3_5-4b", kv_cache_bytes=10 * 3 * 528 * 32_768)
    assert setup.num_blocks == 10
    assert setup.num_cache_tokens == 9 * 3 * 528  # one slab holds the sequence's own state


def _seen(*lengths):
    """Returns the records of prompts with a common beginning, sent one after the other."""
    sessions = tuple(
        Session(
            session_id=str(i),
            start_s=5.0 * i,
            turns=(Turn(0.0, (Segment(1, length - 16), Segment(2 + i, 16)), 1),),
        )
        for i, length in enumerate(lengths)
    )
    setup = Setup(model="qwen3_5-4b", max_model_len=4096)
    return simulate(Trace(name="prompts", sessions=sessions), setup=setup).recorder.records


def test_a_prefill_stops_at_the_last_state_that_is_kept():
    within, beyond, twice = (_seen(length)[0].ttft_s for length in (528, 529, 1056))
    overhead = _MODEL.prefill_overhead_s
    assert within + overhead < beyond
    assert beyond < twice < beyond + overhead  # both take two steps: 528 + 528, 528 + 1


def test_a_hit_needs_a_state():
    # The first prompt keeps its state only at position 1,056. The third one shares fewer tokens,
    # finds no state at 528, and so has no hit.
    assert [record.num_cached_tokens for record in _seen(1584, 1100, 1000)] == [0, 1056, 0]
