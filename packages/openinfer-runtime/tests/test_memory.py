import os
import resource

import pytest
import torch

from openinfer_engine import EngineOptions, ServePlan
from openinfer_runtime import InsufficientMemory, plan_memory
from openinfer_runtime.startup import _memory_plan
from openinfer_runtime.startup._memory_plan import allocate_arena


@pytest.fixture
def plan(engine):
    """Plans memory for a tiny model: `plan(max_model_len, **engine_options)`."""
    model = engine().executor._model
    sizes = ServePlan(
        device="cpu",
        dtype="float32",
        max_model_len=512,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        vocab_size=320,
        eos_token_ids=(),
    )

    def run(**options):
        return plan_memory(model, torch.device("cpu"), EngineOptions(**options), sizes)

    return run


def test_the_pool_is_what_slots_can_use_and_no_more(plan, block_bytes):
    memory = plan()
    assert memory.num_blocks == 2 * 4 * 512 // 16
    assert memory.max_model_len == 512
    assert dict(memory.parts)["KV cache"] == memory.num_blocks * block_bytes
    assert dict(memory.parts)["weights"] == 244_544 * 4


def test_the_pool_is_a_quarter_of_memory_at_most(plan, block_bytes, monkeypatch):
    monkeypatch.setattr(_memory_plan, "host_memory_bytes", lambda: 4 * 100 * block_bytes)
    assert plan().num_blocks == 100


def test_what_is_told_is_taken(plan, block_bytes):
    assert plan(kv_cache_bytes=1000 * block_bytes + 5).num_blocks == 1000


def test_a_length_that_was_not_requested_shrinks_to_the_pool(plan, block_bytes):
    assert plan(kv_cache_bytes=7 * block_bytes).max_model_len == 7 * 16


def test_a_length_that_was_asked_for_must_fit(plan, block_bytes):
    with pytest.raises(
        InsufficientMemory, match=r"--max-model-len to 112 .*--kv-cache-memory-bytes"
    ):
        plan(kv_cache_bytes=7 * block_bytes, max_model_len=512)
    with pytest.raises(InsufficientMemory, match="raise --kv-cache-memory-bytes") as error:
        plan(kv_cache_bytes=10)
    assert error.value.needed_bytes == 32 * block_bytes


def test_weights_beyond_the_machine_are_refused(plan, monkeypatch):
    monkeypatch.setattr(_memory_plan, "host_memory_bytes", lambda: 1000)
    with pytest.raises(InsufficientMemory, match="this machine has"):
        plan()


def test_the_pool_is_what_the_weights_leave_at_most(plan, block_bytes, monkeypatch):
    held = sum(size for what, size in plan().parts if what != "KV cache")
    monkeypatch.setattr(_memory_plan, "host_memory_bytes", lambda: held + 3 * block_bytes)
    assert plan().num_blocks == 3
    assert plan(kv_cache_bytes=3 * block_bytes).num_blocks == 3
    with pytest.raises(InsufficientMemory, match="--kv-cache-memory-bytes asks for") as error:
        plan(kv_cache_bytes=4 * block_bytes)
    assert error.value.needed_bytes - error.value.available_bytes == block_bytes


def test_the_arena_takes_memory_as_it_is_written():
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    if not os.path.exists("/proc/self/statm"):
        pytest.skip("needs procfs")
    before = resident()
    arena = allocate_arena(1 << 30, torch.device("cpu"))
    assert not arena[:: 1 << 22].any()
    assert resident() - before < 1 << 26
    arena[: 1 << 27] = 1
    assert resident() - before > 1 << 26
