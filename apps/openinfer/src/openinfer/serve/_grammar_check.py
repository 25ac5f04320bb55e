"""The check of grammars for `openinfer_frontend`, which must not import `openinfer_grammar`."""

from openinfer_contract import Grammar


def grammar_problem(grammar: Grammar) -> str | None:
    """Returns why a grammar cannot be honoured, or None. It is called from any thread."""
    # Imported with the first grammar, because most servers never see one.
    from openinfer_grammar import GrammarRefused, validate

    try:
        validate(grammar)
    except GrammarRefused as refused:
        return str(refused)
    return None
