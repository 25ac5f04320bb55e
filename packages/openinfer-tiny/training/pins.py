"""Origin of weights: digests of the text, the commit, and the versions of libraries."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from random import Random

from .curriculum import plain_story, talk
from .tokenizer import Renderer

_FOLDER = Path(__file__).parent
_SAMPLE_TALKS = 400
_LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "jinja2")


def text_digest() -> str:
    """Returns a digest of all files of `text/` and of the template."""
    digest = hashlib.blake2b(digest_size=16)
    for path in (*sorted((_FOLDER / "text").iterdir()), _FOLDER / "chat_template.jinja"):
        digest.update(f"{path.name}\0{path.read_text(encoding='utf-8')}\0".encode())
    return digest.hexdigest()


def talks_digest(seed: int) -> str:
    """Returns a digest of the first training talks that worker 0 makes with `seed`."""
    rng, renderer = Random(f"{seed}/0/train"), Renderer()
    digest = hashlib.blake2b(digest_size=16)
    for _ in range(_SAMPLE_TALKS):
        story = plain_story("train", rng)
        text = story if story is not None else renderer.render(talk("train", rng))
        digest.update(f"{text}\0".encode())
    return digest.hexdigest()


def libraries() -> dict[str, str]:
    """Returns the versions of the libraries that affect text, training and answers."""
    return {"python": platform.python_version(), **{name: version(name) for name in _LIBRARIES}}


def commit() -> str | None:
    """Returns the commit, with `-dirty` if files differ from it; None outside a clone."""
    ran = subprocess.run(
        ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"],
        cwd=_FOLDER,
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.stdout.strip() or None
