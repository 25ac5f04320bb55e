"""`openinfer chat` and `openinfer complete`: the terminal's two ways to a model."""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from openinfer._flags import FLAGS
from openinfer._remote import RemoteModel
from openinfer.errors import UsageError


class Model(Protocol):
    """What the terminal needs of a model, here or behind a URL."""

    name: str

    def stream_chat(
        self, messages: list[dict[str, Any]], options: Mapping[str, Any]
    ) -> Iterator[str]:
        """The answer to a conversation, piece by piece; closing the iterator ends it."""

    def stream_completion(self, prompt: str, options: Mapping[str, Any]) -> Iterator[str]:
        """The continuation of a text, piece by piece; closing the iterator ends it."""

    def close(self) -> None:
        """Frees what the model holds."""


def chat(namespace: argparse.Namespace, extra: Sequence[str]) -> int:
    """Runs a conversation on the terminal until the input ends."""
    model = _open_model(namespace, extra, namespace.positional)
    options = _options(namespace)
    messages: list[dict[str, Any]] = []
    if namespace.system:
        messages.append({"role": "system", "content": namespace.system})
    print(f"{model.name}: Ctrl-C stops an answer, Ctrl-D ends the talk.", file=sys.stderr)
    try:
        while (line := _read_line()) is not None:
            if not line.strip():
                continue
            messages.append({"role": "user", "content": line})
            answer = _print_stream(model.stream_chat(messages, options))
            messages.append({"role": "assistant", "content": answer})
    finally:
        model.close()
    return 0


def complete(namespace: argparse.Namespace, extra: Sequence[str]) -> int:
    """Continues one text and ends."""
    prompt = namespace.positional if namespace.positional is not None else sys.stdin.read()
    if not prompt:
        raise UsageError("there is nothing to complete; give a prompt or pipe one in")
    model = _open_model(namespace, extra, None)
    try:
        _print_stream(model.stream_completion(prompt, _options(namespace)))
    finally:
        model.close()
    return 0


def _open_model(
    namespace: argparse.Namespace, extra: Sequence[str], positional: str | None
) -> Model:
    name = getattr(namespace, "model", None) or positional
    if namespace.url:
        if extra:
            raise UsageError(f"{extra[0]} has no effect with --url")
        for flag in FLAGS:
            if flag.dest != "model" and flag.dest in vars(namespace):
                raise UsageError(f"{flag.names[0]} has no effect with --url; leave it out")
        return RemoteModel(namespace.url, name)
    from openinfer._llm import LocalModel

    return LocalModel(name, namespace, extra)


def _options(namespace: argparse.Namespace) -> dict[str, Any]:
    fields = ("max_tokens", "temperature", "top_p")
    return {name: value for name in fields if (value := getattr(namespace, name)) is not None}


def _read_line() -> str | None:
    try:
        return input("> " if sys.stdin.isatty() else "")
    except EOFError:
        return None
    except KeyboardInterrupt:
        print()
        return ""


def _print_stream(pieces: Iterator[str]) -> str:
    """Prints as it comes; Ctrl-C ends the answer, what was printed stays in the conversation."""
    text = []
    try:
        for piece in pieces:
            text.append(piece)
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        print(" [stopped]", end="")
    finally:
        close = getattr(pieces, "close", None)
        if close is not None:
            close()
    print()
    return "".join(text)
