import typing

import msgspec
import pytest

from openinfer_contract import Command, GetLoad, Pause, ResetPrefixCache, command_name

NAMES = {
    "reset_prefix_cache", "pause", "resume", "sleep", "wake", "update_weights", "load_adapter",
    "unload_adapter", "start_trace", "stop_trace", "add_spans", "get_load",
}  # fmt: skip


def test_names_are_distinct_and_known() -> None:
    tags = [kind.__struct_config__.tag for kind in typing.get_args(Command)]
    assert set(tags) == NAMES
    assert len(tags) == len(NAMES)


@pytest.mark.parametrize(
    ("command", "name"),
    [(GetLoad(), "get_load"), (Pause(), "pause"), (ResetPrefixCache(), "reset_prefix_cache")],
)
def test_name_of_a_command(command: Command, name: str) -> None:
    assert command_name(command) == name


def test_pause_waits_by_default() -> None:
    assert Pause().mode == "wait"


def test_a_nonsense_mode_does_not_decode() -> None:
    payload = msgspec.msgpack.encode(["pause", "never"])
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(payload, type=Pause)
