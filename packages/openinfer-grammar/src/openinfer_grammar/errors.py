"""Errors of this package.

OpenInferError
└── GrammarError
    ├── GrammarRefused      the grammar cannot be honoured; names the part at fault
    ├── GrammarFailed       a matcher cannot continue
    └── BackendUnavailable  the backend is not installed, or cannot read the vocabulary
"""

from openinfer_contract import OpenInferError


class GrammarError(OpenInferError):
    """Base class of this package's errors."""


class GrammarRefused(GrammarError):
    """The grammar cannot be honoured exactly.

    Attributes:
        keyword: the part at fault: a keyword of JSON schema such as `uniqueItems`, or a type of a
            structural tag; empty if the whole text is at fault.
        where: dotted path of the keyword, such as `properties.tags.uniqueItems`; empty if `keyword`
            is.
        reason: one sentence.
    """

    def __init__(self, reason: str, *, keyword: str = "", where: str = "") -> None:
        super().__init__(f"{where}: {reason}" if where else reason)
        self.reason = reason
        self.keyword = keyword
        self.where = where


class GrammarFailed(GrammarError):
    """A matcher reached a limit, or got a token that the grammar does not allow."""


class BackendUnavailable(GrammarError):
    """The backend cannot be used; the message says what to do."""
