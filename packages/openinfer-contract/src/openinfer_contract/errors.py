"""Errors of the contract, and the root of those above it.

OpenInferError
├── ContractVersionError   the peer speaks another contract; both versions are named
├── StreamOrderError       an engine broke the order of a request's events: a defect in the engine
├── WireError              bytes on a connection that are no message of this contract
├── EngineDead             the engine is gone; what was in flight has failed
└── PluginError            an installed package's entry point does not load; both are named
"""


class OpenInferError(Exception):
    """Root of the errors that engines, front ends and applications meet.

    Packages below the contract's users (kernels, nn, model files) have roots of their own; whoever
    launches a model turns those into errors of this root.
    """


class ContractVersionError(OpenInferError):
    """The peer speaks another version of the contract.

    Attributes:
        ours: version of this installation.
        theirs: version the peer announced.
    """

    def __init__(self, ours: int, theirs: int) -> None:
        super().__init__(
            f"contract version mismatch: this side speaks {ours}, the peer speaks {theirs}; "
            "install the same openinfer-contract on both sides"
        )
        self.ours = ours
        self.theirs = theirs


class StreamOrderError(OpenInferError):
    """An event arrived that the stream's grammar does not allow at this point."""


class WireError(OpenInferError):
    """A frame that is too large, cut off, or not a message of this contract."""


class EngineDead(OpenInferError):
    """The engine process or thread has ended.

    Attributes:
        reason: one sentence for a log or an error body; no paths, no addresses.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class PluginError(OpenInferError):
    """What an installed package brings by an entry point cannot be loaded.

    Attributes:
        name: of the entry point.
        package: name and version of who brings it.
        reason: what went wrong, in one line.
    """

    def __init__(self, what: str, name: str, package: str, target: str, error: Exception) -> None:
        self.name = name
        self.package = package
        self.reason = " ".join(f"{type(error).__name__}: {error}".split())
        super().__init__(
            f"the {what} {name} of {package} cannot be loaded from {target} ({self.reason}); "
            "repair or uninstall that package"
        )
