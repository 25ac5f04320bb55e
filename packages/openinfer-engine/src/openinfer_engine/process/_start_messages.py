"""Messages of an engine's start, on the inherited socket, before the contract takes over.

Frames have a little-endian u32 length and a msgpack payload:

    parent: ProcessSpec
    engine: Progress* (StartFailed | Started)

After `Started` both sides speak the contract, beginning with `Hello`.
"""

import struct
from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal

import msgspec
from msgspec import Struct

from openinfer_engine._executor import Executor
from openinfer_engine.errors import EngineError
from openinfer_engine.lines._model_line import LaunchSpec

ExecutorFactory = Callable[[LaunchSpec], Executor]
"""A function that makes an executor. Across processes it is named `module:function`. The default
one calls the model line's `launch`; simulators and tests bring their own. Its options travel in
`LaunchSpec.line_options`."""

LogLevel = Literal["debug", "info", "warning", "error"]

LINE_FACTORY = "openinfer_engine:launch_line"

LENGTH = struct.Struct("<I")
MAX_START_FRAME_BYTES = 1 << 20


class ProcessSpec(Struct, frozen=True, kw_only=True):
    """The configuration of an engine process: the first frame on the inherited socket."""

    launch: LaunchSpec
    factory: str = LINE_FACTORY
    """`module:function` of an `ExecutorFactory`."""
    log_level: LogLevel = "info"


class Progress(Struct, frozen=True, tag="progress"):
    """One log line of the start, to be shown to the user."""

    message: str


class StartFailed(Struct, frozen=True, tag="failed"):
    """The start has failed, and the process ends."""

    kind: str
    """Class name of the error."""
    message: str


class Started(Struct, frozen=True, tag="started"):
    """The engine can serve requests. The contract's `Hello` follows."""

    addresses: tuple[str, ...] = ()
    """Addresses the engine listens on, ports resolved."""


StartMessage = Progress | StartFailed | Started

_encoder = msgspec.msgpack.Encoder()
_spec_decoder = msgspec.msgpack.Decoder(ProcessSpec)
_start_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(StartMessage)


def encode_start(message: ProcessSpec | StartMessage) -> bytes:
    """Returns a start message as a frame."""
    payload = _encoder.encode(message)
    return LENGTH.pack(len(payload)) + payload


def decode_spec(payload: bytes) -> ProcessSpec:
    """Returns the spec in a frame's payload."""
    return _spec_decoder.decode(payload)


def decode_start(payload: bytes) -> StartMessage:
    """Returns the child's message in a frame's payload."""
    message: StartMessage = _start_decoder.decode(payload)
    return message


def resolve_factory(name: str) -> ExecutorFactory:
    """Returns the function that `module:function` names.

    Raises:
        EngineError: it cannot be imported or called.
    """
    module, _, attribute = name.partition(":")
    try:
        factory = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise EngineError(f"there is no executor factory {name}: {error}") from error
    if not callable(factory):
        raise EngineError(f"the executor factory {name} is not callable")
    return factory  # type: ignore[no-any-return]
