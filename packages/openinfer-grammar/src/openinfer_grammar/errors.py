"""Everything this package raises.

OpenInferError
└── GrammarError
    ├── GrammarRefused      the grammar cannot be honoured, and which part of it
    ├── GrammarFailed       a matcher cannot go on
    └── BackendUnavailable  the backend is not installed, or has no vocabulary
"""

from openinfer_contract import OpenInferError


class GrammarError(OpenInferError):
    """Base of this package's errors."""


class GrammarRefused(GrammarError):
    """The grammar cannot be honoured exactly.

    Attributes:
        keyword: the part at fault: a keyword of JSON schema such as `uniqueItems`, a type of a
            structural tag; empty where the text as a whole is.
        where: its place, dotted: `properties.tags.uniqueItems`; empty likewise.
        reason: one sentence.
    """

    def __init__(self, reason: str, *, keyword: str = "", where: str = "") -> None:
        super().__init__(f"{where}: {reason}" if where else reason)
        self.reason = reason
        self.keyword = keyword
        self.where = where


class GrammarFailed(GrammarError):
    """A matcher has run into a limit, or was given a token that the grammar does not allow."""


class BackendUnavailable(GrammarError):
    """The backend cannot be used, with the way out."""
