"""What front processes ask about grammars: a seam, because they know text and contract alone."""

from openinfer_contract import Grammar


def grammar_problem(grammar: Grammar) -> str | None:
    """Why a grammar cannot be honoured, None if it can. Any thread."""
    # Loaded with the first grammar: most servers never see one.
    from openinfer_grammar import GrammarRefused, validate

    try:
        validate(grammar)
    except GrammarRefused as refused:
        return str(refused)
    return None
