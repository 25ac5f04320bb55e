"""The contract on a socket: frames of msgpack with one message each.

A frame is a little-endian u32 length and then that many bytes. Both sides send `Hello` first. If
the contract versions differ, the connection is refused with an error that names both. The client
chooses stream ids and call ids; the engine repeats them in its messages.

    client: Hello (Submit | Abort | Control | Drain | Close)*
    engine: Hello (StepEvents | ControlResult | LoadReport | Drained)*
"""

import struct
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from openinfer_contract._commands import Command, CommandDone, CommandFailed
from openinfer_contract._events import StepEvents
from openinfer_contract._info import CONTRACT_VERSION, EngineInfo, Load
from openinfer_contract._request import GenerateRequest
from openinfer_contract.errors import ContractVersionError, WireError

MAX_FRAME_BYTES = 256 * 1024 * 1024
_LENGTH = struct.Struct("<I")


class Hello(Struct, frozen=True, array_like=True, kw_only=True, tag="hello"):
    """The first message in either direction."""

    contract_version: int = CONTRACT_VERSION
    peer: str = ""
    """Name of the sender, for logs."""
    info: EngineInfo | None = None
    """Set by the engine, None in a client's message."""


class Submit(Struct, frozen=True, array_like=True, tag="submit"):
    """A request, with a stream id of the client's choice in `[0, 2**32)`."""

    stream_id: int
    request: GenerateRequest


class Abort(Struct, frozen=True, array_like=True, tag="abort"):
    """Aborts the requests of these streams. Unknown stream ids are ignored."""

    stream_ids: tuple[int, ...]


class Control(Struct, frozen=True, array_like=True, tag="control"):
    """A command. The engine answers with a `ControlResult` of the same `call_id`."""

    call_id: int
    command: Command


class Drain(Struct, frozen=True, array_like=True, tag="drain"):
    """Rejects new requests. The engine sends `Drained` when the last live one has ended."""


class Close(Struct, frozen=True, array_like=True, tag="close"):
    """Ends the engine, which then closes its connections."""


class ControlResult(Struct, frozen=True, array_like=True, tag="control_result"):
    """The result of the command with this `call_id`."""

    call_id: int
    result: CommandDone | CommandFailed


class LoadReport(Struct, frozen=True, array_like=True, tag="load"):
    """The engine's load, sent at most four times a second and only after a change."""

    load: Load


class Drained(Struct, frozen=True, array_like=True, tag="drained"):
    """The last live request has ended after `Drain`."""


ClientMessage = Hello | Submit | Abort | Control | Drain | Close
EngineMessage = Hello | StepEvents | ControlResult | LoadReport | Drained

_encoder = msgspec.msgpack.Encoder()
_client_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ClientMessage)
_engine_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(EngineMessage)


def encode_frame(message: ClientMessage | EngineMessage) -> bytes:
    """Returns a message as a frame.

    Raises:
        WireError: the message is longer than `MAX_FRAME_BYTES`.
    """
    frame = bytearray(4)
    _encoder.encode_into(message, frame, 4)
    size = len(frame) - 4
    if size > MAX_FRAME_BYTES:
        raise WireError(f"a message of {size} bytes exceeds {MAX_FRAME_BYTES}")
    _LENGTH.pack_into(frame, 0, size)
    return bytes(frame)


class _FrameReader:
    """Cuts the bytes of one direction into messages."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[Any]") -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    def _messages(self, data: bytes | memoryview) -> Iterator[Any]:
        buffer = self._buffer
        buffer += data
        begin = 0
        try:
            while len(buffer) - begin >= 4:
                (size,) = _LENGTH.unpack_from(buffer, begin)
                if size > MAX_FRAME_BYTES:
                    raise WireError(f"a frame of {size} bytes exceeds {MAX_FRAME_BYTES}")
                end = begin + 4 + size
                if len(buffer) < end:
                    break
                with memoryview(buffer) as view:
                    payload = bytes(view[begin + 4 : end])
                begin = end
                yield self._decode(payload)
        finally:
            del buffer[:begin]

    def _decode(self, payload: bytes) -> Any:
        try:
            message = self._decoder.decode(payload)
        except msgspec.MsgspecError as error:
            raise WireError(f"not a message of this contract: {error}") from error
        if isinstance(message, Hello) and message.contract_version != CONTRACT_VERSION:
            raise ContractVersionError(CONTRACT_VERSION, message.contract_version)
        return message


class ClientFrameReader(_FrameReader):
    """Reads a client's messages, on the engine's side."""

    def __init__(self) -> None:
        super().__init__(_client_decoder)

    def feed(self, data: bytes | memoryview) -> Iterator[ClientMessage]:
        """Returns the messages that `data` completes. Consume the iterator before the next call.

        Raises:
            WireError: the bytes are not a valid message; close the connection.
            ContractVersionError: the client speaks another version; close the connection.
        """
        return self._messages(data)


class EngineFrameReader(_FrameReader):
    """Reads an engine's messages, on the client's side."""

    def __init__(self) -> None:
        super().__init__(_engine_decoder)

    def feed(self, data: bytes) -> Iterator[EngineMessage]:
        """Returns the messages that `data` completes. Consume the iterator before the next call.

        Raises:
            WireError: the bytes are not a valid message; close the connection.
            ContractVersionError: the engine speaks another version; close the connection.
        """
        return self._messages(data)
