"""Commands: each runs between two steps, on all ranks, and is answered once all ranks have run it.

`EngineInfo.commands` lists the commands that an engine supports. It answers any other one with
`CommandFailed(kind="unsupported")`.
"""

from typing import Literal

from msgspec import Struct

from openinfer_contract._info import Load


class ResetPrefixCache(Struct, frozen=True, array_like=True, tag="reset_prefix_cache"):
    """Evicts every cached block. Running requests continue."""


class Pause(Struct, frozen=True, array_like=True, tag="pause"):
    """Stops the engine from planning steps, until `Resume`."""

    mode: Literal["abort", "wait", "keep"] = "wait"
    """abort: abort live requests first. wait: finish them first. keep: pause at once and leave live
    requests where they are. Requests that arrive after the command wait for `Resume`."""


class Resume(Struct, frozen=True, array_like=True, tag="resume"):
    """Lets the engine plan steps again after `Pause`."""


class Sleep(Struct, frozen=True, array_like=True, tag="sleep"):
    """Frees device memory. Level 1 keeps the weights in host memory, level 2 drops them."""

    level: Literal[1, 2] = 1


class Wake(Struct, frozen=True, array_like=True, tag="wake"):
    """Undoes `Sleep`."""


class UpdateWeights(Struct, frozen=True, array_like=True, tag="update_weights"):
    """Loads another checkpoint of the same shapes.

    It increments `weights_version` and resets the prefix cache.
    """

    path: str


class LoadAdapter(Struct, frozen=True, array_like=True, tag="load_adapter"):
    """Loads a LoRA adapter from `path` and makes it available as `name`."""

    name: str
    path: str


class UnloadAdapter(Struct, frozen=True, array_like=True, tag="unload_adapter"):
    """Unloads a LoRA adapter."""

    name: str


class StartTrace(Struct, frozen=True, array_like=True, tag="start_trace"):
    """Starts a trace of requests and steps. `CommandDone.message` is the path of its file."""

    path: str = ""
    """Path of the file; its folder must exist. If the name is taken, a number is added to it.
    Empty: a new file in the engine's trace folder."""
    has_kernels: bool = False
    """Whether to record the kernels of the first 128 steps, which slows these steps down."""
    max_bytes: int | None = None
    """Upper bound of the file's size; later events are dropped. None: the engine's own bound."""


class StopTrace(Struct, frozen=True, array_like=True, tag="stop_trace"):
    """Ends the trace and flushes its file. `CommandDone.message` is the file's path."""


class AddSpans(Struct, frozen=True, array_like=True, tag="add_spans"):
    """Adds a client's spans for one request to the trace. Without a trace it has no effect.

    It takes effect at once, not between two steps.
    """

    key: str
    """The client's name for the request."""
    pid: int
    """Process id of the client."""
    process: str
    """Name of the client process in the trace, such as `front`."""
    spans: tuple[tuple[str, float, float], ...]
    """(name, begin, end) in monotonic seconds. The first span contains all others, which follow one
    another."""


class GetLoad(Struct, frozen=True, array_like=True, tag="get_load"):
    """Asks for the exact load between two steps. `EngineHandle.load` may be older."""


Command = (
    ResetPrefixCache
    | Pause
    | Resume
    | Sleep
    | Wake
    | UpdateWeights
    | LoadAdapter
    | UnloadAdapter
    | StartTrace
    | StopTrace
    | AddSpans
    | GetLoad
)


class CommandDone(Struct, frozen=True, array_like=True, kw_only=True, tag="done"):
    """The result of a command that took effect."""

    message: str = ""
    load: Load | None = None
    """The load right after the command."""


class CommandFailed(Struct, frozen=True, array_like=True, kw_only=True, tag="failed"):
    """The result of a command that had no effect."""

    kind: Literal["unsupported", "failed", "refused"]
    """unsupported: the engine does not know the command. refused: a value of the command is
    invalid, or the engine's state does not allow the command; the caller can correct that.
    failed: the engine could not run it."""
    message: str


CommandResult = CommandDone | CommandFailed


def command_name(command: Command) -> str:
    """Returns a command's name as `EngineInfo.commands` lists it."""
    tag = command.__struct_config__.tag
    assert isinstance(tag, str)
    return tag
