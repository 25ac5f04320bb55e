"""`python -m training build` makes the checkpoint, `python -m training evaluate` measures it."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from .evaluate import evaluate
from .train import Recipe, build

_CHECKPOINT = Path(__file__).parents[1] / "src" / "openinfer_tiny" / "checkpoint"


def main() -> None:
    """Parses the command line and runs one of the two."""
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument("command", choices=("build", "evaluate"))
    parser.add_argument("--folder", type=Path, default=_CHECKPOINT)
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.command == "build":
        build(arguments.folder, Recipe(seed=arguments.seed, steps=arguments.steps))
    print(evaluate(arguments.folder))


if __name__ == "__main__":
    main()
