"""Commands: they take effect between steps, on all ranks, and answer once all have.

An engine names the commands it honours in `EngineInfo.commands`; any other is answered with
`CommandFailed(kind="unsupported")`.
"""

from typing import Literal

from msgspec import Struct

from openinfer_contract._info import Load


class ResetPrefixCache(Struct, frozen=True, array_like=True, tag="reset_prefix_cache"):
    """Forgets every cached block. Running requests go on."""


class Pause(Struct, frozen=True, array_like=True, tag="pause"):
    """Stops stepping. abort: ends live requests; wait: finishes them first; keep: freezes them."""

    mode: Literal["abort", "wait", "keep"] = "wait"


class Resume(Struct, frozen=True, array_like=True, tag="resume"):
    """Steps again after `Pause`."""


class Sleep(Struct, frozen=True, array_like=True, tag="sleep"):
    """Frees device memory. Level 1 keeps the weights on the host, 2 drops them."""

    level: Literal[1, 2] = 1


class Wake(Struct, frozen=True, array_like=True, tag="wake"):
    """Undoes `Sleep`."""


class UpdateWeights(Struct, frozen=True, array_like=True, tag="update_weights"):
    """Loads another checkpoint of the same shapes; `weights_version` rises, the cache is reset."""

    path: str


class LoadAdapter(Struct, frozen=True, array_like=True, tag="load_adapter"):
    """Makes a LoRA adapter available under a name."""

    name: str
    path: str


class UnloadAdapter(Struct, frozen=True, array_like=True, tag="unload_adapter"):
    """Forgets a LoRA adapter."""

    name: str


class StartTrace(Struct, frozen=True, array_like=True, tag="start_trace"):
    """Starts writing a trace of requests and steps; `CommandDone.message` is the file's path."""

    path: str = ""
    """Of the file, whose folder exists; a number is added to a name that is taken. Empty: a new
    file in the engine's folder for traces."""
    has_kernels: bool = False
    """Whether single kernels are in it, of the first steps: that makes them slow."""
    max_bytes: int | None = None
    """Of the file; what comes later is dropped. None: as the engine was told."""


class StopTrace(Struct, frozen=True, array_like=True, tag="stop_trace"):
    """Ends the trace and flushes it; `CommandDone.message` is the file's path."""


class AddSpans(Struct, frozen=True, array_like=True, tag="add_spans"):
    """Adds what a client did for a request to the trace; without one nothing happens.

    Takes effect at once, not between steps.
    """

    key: str
    """The client's name for the request."""
    pid: int
    process: str
    """What the client is, such as `front`."""
    spans: tuple[tuple[str, float, float], ...]
    """(name, begin, end), monotonic seconds: the first holds all others, which come one behind the
    other."""


class GetLoad(Struct, frozen=True, array_like=True, tag="get_load"):
    """Asks for the exact load between two steps; `EngineHandle.load` may lag by a report."""


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
    """The command took effect."""

    message: str = ""
    load: Load | None = None
    """The load right after the command."""


class CommandFailed(Struct, frozen=True, array_like=True, kw_only=True, tag="failed"):
    """The command had no effect."""

    kind: Literal["unsupported", "failed", "refused"]
    """refused: not now, or not so; whoever asked can mend that."""
    message: str


CommandResult = CommandDone | CommandFailed


def command_name(command: Command) -> str:
    """The wire name of a command, as `EngineInfo.commands` lists it."""
    tag = command.__struct_config__.tag
    assert isinstance(tag, str)
    return tag
