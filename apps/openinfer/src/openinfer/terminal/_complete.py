"""`openinfer complete`: continues one text on standard output."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing

from openinfer._interrupts import STATUS, raise_interrupts
from openinfer.errors import UsageError
from openinfer.terminal._open_model import open_model, sampling_options


def complete(namespace: argparse.Namespace, extra: Sequence[str]) -> int:
    """Continues one text; returns 130 if Ctrl-C stopped it."""
    status = 0
    prompt = namespace.positional
    # An argument after a flag of the model line may be the prompt or the flag's value. If the user
    # means it as the prompt, waiting for input from the terminal would look like a hang.
    if prompt is None and not (extra and sys.stdin.isatty()):
        prompt = sys.stdin.read()
    if not prompt:
        first = f" ahead of {extra[0]}" if extra else ""
        raise UsageError(f"nothing to complete; give a prompt{first} or pipe one in")
    model = open_model(namespace, extra, None)
    raise_interrupts()
    try:
        with closing(model.stream_completion(prompt, sampling_options(namespace))) as pieces:
            for piece in pieces:
                print(piece, end="", flush=True)
    except KeyboardInterrupt:
        print(" [stopped]", end="", file=sys.stderr)
        status = STATUS
    finally:
        model.close()
    print()
    return status
