"""Errors of this package.

TextError
├── CheckpointTextError   a file of the checkpoint is missing or wrong; names the file and the field
├── TemplateError         the chat template failed or refused the messages: a 400
├── InvalidChatInput      messages that cannot be given to a template; names the field: a 400
├── NoChatTemplate        a chat was requested, and the checkpoint has no template: a 400
├── ParserError           a tool or reasoning parser is missing, or several claim a model
├── StructureError        a request's output format cannot be read; names the field: a 400
└── FieldRejected         a request's sampling field cannot be honoured; names the field

Messages of the errors that become a 400 never contain a path or a traceback.
"""

from openinfer_contract import OpenInferError, Rejected


class TextError(OpenInferError):
    """Base class of this package's errors."""


class CheckpointTextError(TextError):
    """A file of the checkpoint folder is missing, unreadable or inconsistent.

    Attributes:
        file: name of the file inside the checkpoint folder.
        field: dotted path inside the file; empty if the whole file is wrong.
        reason: one sentence for the user.
    """

    def __init__(self, file: str, field: str, reason: str) -> None:
        where = f"{file}: {field}" if field else file
        super().__init__(f"{where}: {reason}")
        self.file = file
        self.field = field
        self.reason = reason


class TemplateError(TextError):
    """The chat template could not be compiled, failed, or refused the messages.

    Attributes:
        message: one sentence; the argument of `raise_exception` if the template called it.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidChatInput(TextError):
    """Messages or template arguments cannot be given to a template.

    Attributes:
        field: path inside the request, such as `messages[2].content[0].type`.
        reason: one sentence for the user.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class NoChatTemplate(TextError):
    """The checkpoint has no chat template, so messages cannot be rendered."""

    def __init__(self) -> None:
        super().__init__("this model has no chat template; send plain text or configure a template")


class ParserError(TextError):
    """A parser is not installed or does not load, or several parsers claim one model."""


class StructureError(TextError):
    """The output format that a request asks for cannot be read.

    Attributes:
        field: dotted path inside the format; empty if the whole format is wrong.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.field = field


class FieldRejected(TextError):
    """A sampling field of a request cannot be honoured.

    Attributes:
        rejected: the reason, with the contract's name of the field or the client's.
    """

    def __init__(self, rejected: Rejected) -> None:
        super().__init__(rejected.message)
        self.rejected = rejected
