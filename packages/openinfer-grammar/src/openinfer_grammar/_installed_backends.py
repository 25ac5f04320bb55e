"""Backends by name."""

from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from openinfer_grammar._backend import GrammarBackend
from openinfer_grammar.errors import BackendUnavailable
from openinfer_grammar.llguidance._backend import LLGuidanceBackend

BackendName = Literal["llguidance", "xgrammar"]


def check_backend(name: BackendName) -> None:
    """Checks that a backend is installed, without importing it.

    Raises:
        BackendUnavailable: it is not; names the command that installs it.
    """
    if name == "xgrammar" and find_spec("xgrammar") is None:
        raise BackendUnavailable(
            "xgrammar is not installed: pip install 'openinfer-grammar[xgrammar]'"
        )


def load_backend(
    name: BackendName, tokenizer: Path, *, vocab_size: int, eos_token_ids: tuple[int, ...]
) -> GrammarBackend:
    """Makes a backend over a vocabulary, which takes seconds for 150,000 tokens.

    Args:
        name: name of the backend.
        tokenizer: the checkpoint's tokenizer.json.
        vocab_size: number of ids of the model.
        eos_token_ids: ids that end an output, at least one.

    Raises:
        BackendUnavailable: the file or the backend cannot be read.
    """
    check_backend(name)
    try:
        content = tokenizer.read_bytes()
    except OSError as error:
        reason = f"{tokenizer.name}: {error.strerror}; grammars need a tokenizer.json"
        raise BackendUnavailable(reason) from error
    if name == "llguidance":
        return LLGuidanceBackend(content, vocab_size=vocab_size, eos_token_ids=eos_token_ids)
    # xgrammar imports torch, which the rest of this package never does.
    from openinfer_grammar.xgrammar._backend import XGrammarBackend

    return XGrammarBackend(content, vocab_size=vocab_size, eos_token_ids=eos_token_ids)
