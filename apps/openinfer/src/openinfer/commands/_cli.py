"""The `openinfer` command: serve, chat, complete, warmup, doctor, and commands of packages."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from openinfer._interrupts import STATUS, raise_interrupts
from openinfer.commands._plugin_commands import add_commands
from openinfer.options._flags import add_flags
from openinfer.options._line_options import unknown_own_flag
from openinfer_contract import OpenInferError
from openinfer_engine import FlagFormatter

_OUR_COMMANDS = frozenset({"serve", "chat", "complete", "doctor", "warmup"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status.

    The status is 0 for success, and 1 for a failure, with one sentence on standard error. It is 2
    for wrong or missing arguments, after printing the usage. As in shells, it is 130 after Ctrl-C,
    and 141 if the reader of the output has closed the pipe.
    """
    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        is_ours = bool(given) and given[0] in _OUR_COMMANDS
        parser = _parser(with_others=not is_ours, wanted=given[0] if given else None)
        if not given:
            parser.print_help(sys.stderr)
            return 2
        namespace, extra = _parse(parser, given)
        if extra and not getattr(namespace, "takes_extra", False):
            parser.error(str(unknown_own_flag(extra[0], _flags_of(parser, namespace.command))))
        if not is_ours:
            raise_interrupts()  # our own commands call it once they have something to close
        return int(namespace.run(namespace, extra))
    except OpenInferError as error:
        print(f"openinfer: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return STATUS
    except BrokenPipeError:
        # Python flushes standard output at exit, which would raise BrokenPipeError again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _parse(
    parser: argparse.ArgumentParser, arguments: list[str]
) -> tuple[argparse.Namespace, list[str]]:
    """Parses the flags of `FLAGS`; returns other arguments for the model line.

    The positional argument comes first, or it is the only argument that `FLAGS` does not take.
    Anywhere else it could be the value of a flag that only the model line knows.
    """
    is_ours = bool(arguments) and arguments[0] in _OUR_COMMANDS
    has_positional = is_ours and len(arguments) > 1 and not arguments[1].startswith("-")
    positional = arguments.pop(1) if has_positional else None
    namespace, extra = parser.parse_known_args(arguments)
    if is_ours and positional is None and len(extra) == 1 and not extra[0].startswith("-"):
        positional = extra.pop()
    namespace.positional = positional
    return namespace, extra


def _flags_of(parser: argparse.ArgumentParser, command: str) -> list[str]:
    """Returns every spelling of every flag of a command."""
    (commands,) = (action.choices for action in parser._actions if action.dest == "command")
    assert isinstance(commands, dict)
    return [name for action in commands[command]._actions for name in action.option_strings]


def _parser(*, with_others: bool = True, wanted: str | None = None) -> argparse.ArgumentParser:
    """Returns the parser of all commands; it imports the commands of other packages.

    Raises:
        PluginError: the command on the command line belongs to another package and does not load.
    """
    parser = argparse.ArgumentParser(
        prog="openinfer", description="An LLM inference engine made of packages."
    )
    parser.add_argument("--version", action="version", version=f"openinfer {version('openinfer')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_serve(commands)
    _add_chat(commands)
    _add_complete(commands)
    _add_warmup(commands)
    _add_doctor(commands)
    if with_others:
        add_commands(commands, wanted)
    return parser


def _add_serve(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "serve",
        help="serve a model over OpenAI-compatible HTTP",
        description=(
            "Serves a model over OpenAI-compatible HTTP. Without MODEL: the built-in model."
        ),
        usage="openinfer serve [MODEL] [flags]",
        allow_abbrev=False,
        formatter_class=FlagFormatter,
        epilog="Model lines may have further flags; docs/guides/flags.md lists them.",
    )
    parser.add_argument(
        "--config", help="YAML file of flags; flags of the command line are preferred"
    )
    add_flags(parser, ("model", "server", "engine", "text", "http"))
    parser.set_defaults(run=_serve, takes_extra=True)


def _add_chat(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "chat",
        help="talk to a model in the terminal",
        description="Talks to a model on a server (--url) or in this process.",
        epilog='Each line is a turn; """ begins and ends a text of several lines. Try /help.',
        usage="openinfer chat [MODEL] [flags]",
        allow_abbrev=False,
        formatter_class=FlagFormatter,
    )
    _add_client_flags(parser)
    parser.add_argument("--system", help="system message of the conversation")
    parser.add_argument(
        "--tools",
        default="",
        help="tools that the model may call: python,shell; every call is shown",
    )
    parser.add_argument(
        "--run-tools",
        action="store_true",
        help="run calls without asking first; there is no sandbox",
    )
    add_flags(parser, ("text",), only=("chat_template", "tool_call_parser", "reasoning_parser"))
    parser.set_defaults(run=_chat, takes_extra=True)


def _add_complete(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "complete",
        help="continue a text",
        description=(
            "Continues PROMPT, or standard input, by a model on a server (--url) or loaded here."
        ),
        usage="openinfer complete [PROMPT] [flags]",
        allow_abbrev=False,
        formatter_class=FlagFormatter,
    )
    _add_client_flags(parser)
    parser.set_defaults(run=_complete, takes_extra=True)


def _add_client_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", help="server of the model, such as http://127.0.0.1:8000")
    parser.add_argument("--api-key", help="key for that server (default: OPENINFER_API_KEY)")
    parser.add_argument("--max-tokens", type=int, default=None, help="upper bound of output tokens")
    parser.add_argument(
        "--temperature", type=float, default=None, help="0 always takes the most likely token"
    )
    parser.add_argument(
        "--top-p",
        type=float,
        default=None,
        help="sample from the smallest set of tokens with this probability",
    )
    add_flags(parser, ("model",), only=("model", "revision", "download_dir", "model_line"))
    add_flags(parser, ("engine",))


def _add_warmup(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "warmup",
        help="compile the kernels of a model on this machine",
        description=(
            "Compiles the kernels that a server of the model needs on this machine, and ends. "
            "Give it the server's flags: kernels depend on them."
        ),
        usage="openinfer warmup [MODEL] [flags]",
        allow_abbrev=False,
        formatter_class=FlagFormatter,
    )
    add_flags(parser, ("model",), only=("revision", "download_dir", "model_line"))
    add_flags(parser, ("engine",))
    parser.set_defaults(run=_warmup, takes_extra=True)


def _add_doctor(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "doctor",
        help="show the machine, the installed parts and the kernels in use",
        description="Shows the machine, the installed parts, and the kernels of a server.",
        usage="openinfer doctor [MODEL]",
    )
    parser.set_defaults(run=_doctor, takes_extra=False)


# Commands are imported when they run, so that `openinfer --help` is quick.


def _serve(namespace: argparse.Namespace, extra: list[str]) -> int:
    from openinfer.serve._serve import serve

    return serve(namespace, extra)


def _chat(namespace: argparse.Namespace, extra: list[str]) -> int:
    from openinfer.terminal._chat import chat

    return chat(namespace, extra)


def _complete(namespace: argparse.Namespace, extra: list[str]) -> int:
    from openinfer.terminal._complete import complete

    return complete(namespace, extra)


def _warmup(namespace: argparse.Namespace, extra: list[str]) -> int:
    from openinfer.commands._warmup import warmup

    return warmup(namespace, extra)


def _doctor(namespace: argparse.Namespace, extra: list[str]) -> int:
    from openinfer.commands._doctor import doctor

    return doctor(namespace.positional)
