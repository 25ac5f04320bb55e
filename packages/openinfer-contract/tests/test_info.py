import pytest
from msgspec.structs import replace

from openinfer_contract import Load

IDLE = Load(num_total_blocks=10, num_free_blocks=4, num_evictable_blocks=6, num_output_tokens=99)


def test_idle_means_nothing_is_held() -> None:
    assert IDLE.is_idle
    assert Load().is_idle


@pytest.mark.parametrize(
    "field",
    ["num_running", "num_waiting", "num_slots", "num_pinned_blocks", "num_open_leases"],
)
def test_anything_held_is_not_idle(field: str) -> None:
    assert not replace(IDLE, **{field: 1}).is_idle


def test_a_lost_block_is_not_idle() -> None:
    assert not Load(num_total_blocks=10, num_free_blocks=3, num_evictable_blocks=6).is_idle
