"""Errors of the contract, and the root of all errors that its users meet.

OpenInferError
├── ContractVersionError   the peer speaks another version of the contract
├── StreamOrderError       an engine broke the order of a request's events: a defect
├── WireError              bytes on a connection that are not a message of this contract
├── EngineDead             the engine has ended, and its live requests have failed
└── PluginError            an installed package's entry point does not load
"""


class OpenInferError(Exception):
    """Root of the errors that users of engines, front ends and applications meet.

    Packages below the engine (kernels, nn, model files) have error roots of their own. The code
    that launches a model turns those into errors of this root.
    """


class ContractVersionError(OpenInferError):
    """The peer speaks another version of the contract.

    Attributes:
        ours: contract version of this installation.
        theirs: contract version of the peer.
    """

    def __init__(self, ours: int, theirs: int) -> None:
        super().__init__(
            f"contract version mismatch: this side speaks {ours}, the peer speaks {theirs}; "
            "install the same openinfer-contract on both sides"
        )
        self.ours = ours
        self.theirs = theirs


class StreamOrderError(OpenInferError):
    """An event violates the order of its request's events. This is a defect of the engine."""


class WireError(OpenInferError):
    """A frame is too large, cut off, or not a message of this contract."""


class EngineDead(OpenInferError):
    """The engine's process or thread has ended.

    Attributes:
        reason: one sentence for a log or an error body, without paths and addresses.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class PluginError(OpenInferError):
    """An entry point of an installed package cannot be loaded.

    Attributes:
        name: name of the entry point.
        package: name and version of the package that offers it.
        reason: the underlying error, in one line.
    """

    def __init__(self, what: str, name: str, package: str, target: str, error: Exception) -> None:
        self.name = name
        self.package = package
        self.reason = " ".join(f"{type(error).__name__}: {error}".split())
        super().__init__(
            f"the {what} {name} of {package} cannot be loaded from {target} ({self.reason}); "
            "repair or uninstall that package"
        )
