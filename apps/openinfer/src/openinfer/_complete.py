"""`openinfer complete`: one text goes on, on standard output."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing

from openinfer._interrupts import STATUS, raise_interrupts
from openinfer._terminal_model import open_model, sampling_options
from openinfer.errors import UsageError


def complete(namespace: argparse.Namespace, extra: Sequence[str]) -> int:
    """Continues one text and ends; Ctrl-C ends it early, by the status of an interrupt."""
    status = 0
    prompt = namespace.positional if namespace.positional is not None else sys.stdin.read()
    if not prompt:
        raise UsageError("there is nothing to complete; give a prompt or pipe one in")
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
