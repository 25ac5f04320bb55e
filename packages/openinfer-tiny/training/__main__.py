"""Command line: `build` makes a checkpoint, `evaluate` measures it, `card` writes the figures."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from .card import table, update
from .evaluate import evaluate
from .train import Recipe, build

_PACKAGE = Path(__file__).parents[1]
_CHECKPOINT = _PACKAGE / "src" / "openinfer_tiny" / "checkpoint"


def main() -> None:
    """Parses the command line and runs the command."""
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument("command", choices=("build", "evaluate", "card"))
    parser.add_argument("--folder", type=Path, default=_CHECKPOINT)
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    parser.add_argument("--batch-tokens", type=int, default=Recipe.batch_tokens)
    parser.add_argument("--workers", type=int, default=Recipe.num_workers)
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--questions", type=int, default=20, help="drawn per family")
    parser.add_argument(
        "--report", type=Path, default=_PACKAGE / "evaluation.json", help="written, read by `card`"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    if arguments.command == "card":
        update(_PACKAGE / "README.md", json.loads(arguments.report.read_text(encoding="utf-8")))
        return
    if arguments.command == "build":
        recipe = Recipe(
            seed=arguments.seed,
            steps=arguments.steps,
            batch_tokens=arguments.batch_tokens,
            num_workers=arguments.workers,
        )
        build(arguments.folder, recipe, device)
    report = evaluate(arguments.folder, device, arguments.questions)
    arguments.report.write_text(
        json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    print(table(report))


if __name__ == "__main__":
    main()
