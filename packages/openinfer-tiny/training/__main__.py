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
    parser.add_argument("--batch-tokens", type=int, default=Recipe.batch_tokens)
    parser.add_argument("--workers", type=int, default=Recipe.num_workers)
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--questions", type=int, default=100, help="asked per line of the report")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    if arguments.command == "build":
        recipe = Recipe(
            seed=arguments.seed,
            steps=arguments.steps,
            batch_tokens=arguments.batch_tokens,
            num_workers=arguments.workers,
        )
        build(arguments.folder, recipe, device)
    print(evaluate(arguments.folder, device, arguments.questions))


if __name__ == "__main__":
    main()
