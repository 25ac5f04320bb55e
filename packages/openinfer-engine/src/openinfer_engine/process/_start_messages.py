"""How an engine process is told what to be, and how it says that it is ready.

On the inherited socket, before the contract takes over, in frames of a little-endian u32 length
and msgpack:

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
"""What makes an executor. It is named across processes as `module:function`; a model line's
`launch` is reached through the default one, simulators and tests bring their own. Its options
travel in `LaunchSpec.line_options`."""

LogLevel = Literal["debug", "info", "warning", "error"]

LINE_FACTORY = "openinfer_engine:launch_line"

LENGTH = struct.Struct("<I")
MAX_START_FRAME_BYTES = 1 << 20


class ProcessSpec(Struct, frozen=True, kw_only=True):
    """The first frame on the inherited socket."""

    launch: LaunchSpec
    factory: str = LINE_FACTORY
    """`module:function` of an `ExecutorFactory`."""
    log_level: LogLevel = "info"


class Progress(Struct, frozen=True, tag="progress"):
    """The start goes on; one line for people."""

    message: str


class StartFailed(Struct, frozen=True, tag="failed"):
    """The start has failed; the process ends."""

    kind: str
    """Name of the error."""
    message: str


class Started(Struct, frozen=True, tag="started"):
    """Requests can be served; the contract's `Hello` follows."""

    addresses: tuple[str, ...] = ()
    """Where the engine listens, ports resolved."""


StartMessage = Progress | StartFailed | Started

_encoder = msgspec.msgpack.Encoder()
_spec_decoder = msgspec.msgpack.Decoder(ProcessSpec)
_start_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(StartMessage)


def encode_start(message: ProcessSpec | StartMessage) -> bytes:
    """One message of the start as a frame."""
    payload = _encoder.encode(message)
    return LENGTH.pack(len(payload)) + payload


def decode_spec(payload: bytes) -> ProcessSpec:
    """What the parent asks for."""
    return _spec_decoder.decode(payload)


def decode_start(payload: bytes) -> StartMessage:
    """What the child says."""
    message: StartMessage = _start_decoder.decode(payload)
    return message


def resolve_factory(name: str) -> ExecutorFactory:
    """The function that `module:function` names.

    Raises:
        EngineError: if there is none.
    """
    module, _, attribute = name.partition(":")
    try:
        factory = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise EngineError(f"there is no executor factory {name}: {error}") from error
    if not callable(factory):
        raise EngineError(f"the executor factory {name} is not callable")
    return factory  # type: ignore[no-any-return]
