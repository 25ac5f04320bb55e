import struct
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from openinfer_contract import (
    CONTRACT_VERSION,
    MAX_FRAME_BYTES,
    Abort,
    ClientFrameReader,
    Close,
    CommandDone,
    CommandFailed,
    ContractVersionError,
    Control,
    ControlResult,
    Drain,
    Drained,
    EngineFrameReader,
    EngineInfo,
    Failed,
    Finished,
    GenerateRequest,
    Hello,
    Load,
    LoadReport,
    Pause,
    Rejected,
    Scheduled,
    StepEvents,
    Submit,
    TokenEvent,
    WireError,
    encode_frame,
    pack_ids,
)

Make = Callable[..., Any]


@pytest.fixture
def client_messages(make_request: Callable[..., GenerateRequest]) -> list[Any]:
    return [
        Hello(peer="me"),
        Submit(7, make_request(prompt_token_ids=pack_ids(range(50)))),
        Control(1, Pause(mode="keep")),
        Abort((7, 8)),
        Drain(),
        Close(),
    ]


@pytest.fixture
def engine_messages(make_info: Callable[..., EngineInfo]) -> list[Any]:
    rows = [
        (3, TokenEvent(scheduled=Scheduled(num_prompt_tokens=4), token_ids=pack_ids([1, 2]))),
        (9, TokenEvent(end=Finished(reason="stop", stop_token_id=2))),
        (4, TokenEvent(end=Failed(message="gone"))),
        (5, TokenEvent(end=Rejected(kind="draining", message="no", retry_after_s=1.0))),
    ]
    return [
        Hello(peer="engine", info=make_info()),
        StepEvents.from_rows(12, 0, rows),
        ControlResult(1, CommandDone(message="x", load=Load(num_running=2))),
        ControlResult(2, CommandFailed(kind="unsupported", message="no")),
        LoadReport(Load(step_id=5)),
        Drained(),
    ]


def _reader(side: str) -> Any:
    return ClientFrameReader() if side == "client" else EngineFrameReader()


@pytest.mark.parametrize("side", ["client", "engine"])
def test_messages_survive_a_cut_at_every_byte(side: str, request: pytest.FixtureRequest) -> None:
    messages = request.getfixturevalue(f"{side}_messages")
    data = b"".join(encode_frame(message) for message in messages)
    for cut in range(len(data) + 1):
        reader = _reader(side)
        assert [*reader.feed(data[:cut]), *reader.feed(data[cut:])] == messages


@pytest.mark.parametrize("side", ["client", "engine"])
def test_messages_survive_single_bytes(side: str, request: pytest.FixtureRequest) -> None:
    messages = request.getfixturevalue(f"{side}_messages")
    reader = _reader(side)
    data = b"".join(encode_frame(message) for message in messages)
    assert [m for i in range(len(data)) for m in reader.feed(data[i : i + 1])] == messages


def test_a_frame_is_a_length_and_so_many_bytes() -> None:
    frame = encode_frame(Drain())
    (size,) = struct.unpack_from("<I", frame)
    assert size == len(frame) - 4
    assert msgspec.msgpack.decode(frame[4:]) == ["drain"]


def test_an_oversize_frame_is_refused_before_it_arrives() -> None:
    reader = ClientFrameReader()
    with pytest.raises(WireError, match="exceeds"):
        list(reader.feed(struct.pack("<I", MAX_FRAME_BYTES + 1)))


def test_an_oversize_message_is_not_encoded(
    make_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from openinfer_contract import _wire

    monkeypatch.setattr(_wire, "MAX_FRAME_BYTES", 100)
    with pytest.raises(WireError, match="exceeds 100"):
        encode_frame(Submit(1, make_request(prompt_token_ids=pack_ids(range(100)))))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"hello",
        msgspec.msgpack.encode(["no such message"]),
        msgspec.msgpack.encode(["submit", "seven", []]),
        msgspec.msgpack.encode({"type": "drain"}),
        msgspec.msgpack.encode(["abort", ["x"]]),
    ],
)
def test_garbage_is_a_wire_error(payload: bytes) -> None:
    reader = ClientFrameReader()
    with pytest.raises(WireError):
        list(reader.feed(struct.pack("<I", len(payload)) + payload))


def test_messages_before_garbage_are_delivered() -> None:
    reader = ClientFrameReader()
    messages = reader.feed(encode_frame(Drain()) + struct.pack("<I", 1) + b"\xc1")
    assert next(messages) == Drain()
    with pytest.raises(WireError):
        next(messages)


def test_a_message_of_the_other_direction_is_refused() -> None:
    with pytest.raises(WireError):
        list(ClientFrameReader().feed(encode_frame(Drained())))
    with pytest.raises(WireError):
        list(EngineFrameReader().feed(encode_frame(Drain())))


@pytest.mark.parametrize("side", ["client", "engine"])
def test_another_version_names_both(side: str) -> None:
    frame = encode_frame(Hello(contract_version=CONTRACT_VERSION + 6))
    with pytest.raises(ContractVersionError) as caught:
        list(_reader(side).feed(frame))
    assert (caught.value.ours, caught.value.theirs) == (CONTRACT_VERSION, CONTRACT_VERSION + 6)
    assert f"speaks {CONTRACT_VERSION + 6}" in str(caught.value)


def test_a_newer_side_may_append_fields() -> None:
    payload = msgspec.msgpack.encode(["hello", CONTRACT_VERSION, "newer", None, "a new field"])
    reader = ClientFrameReader()
    assert list(reader.feed(struct.pack("<I", len(payload)) + payload)) == [Hello(peer="newer")]


def test_an_older_side_may_lack_fields() -> None:
    payload = msgspec.msgpack.encode(["hello"])
    reader = ClientFrameReader()
    assert list(reader.feed(struct.pack("<I", len(payload)) + payload)) == [Hello()]
