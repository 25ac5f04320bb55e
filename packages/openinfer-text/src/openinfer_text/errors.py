"""Errors of the text package.

TextError
├── CheckpointTextError   a file of the checkpoint is missing or wrong; names the file and the field
├── TemplateError         the chat template failed or refused the messages: the client's 400
├── InvalidChatInput      messages no template can be given; names the field: a 400
├── NoChatTemplate        a chat was asked of a checkpoint that brings no chat template: a 400
├── ParserError           a tool or reasoning parser that is not there, or not the only one
└── StructureError        what is asked of an output's form cannot be read; names the field: a 400

What the front end answers with a 400 never carries a path or a traceback in its text.
"""

from openinfer_contract import OpenInferError


class TextError(OpenInferError):
    """Root of every error this package raises on purpose."""


class CheckpointTextError(TextError):
    """A file in the checkpoint folder is missing, unreadable or says something impossible.

    Attributes:
        file: name of the file inside the checkpoint folder.
        field: dotted field inside the file, empty when the file as a whole is wrong.
        reason: one sentence.
    """

    def __init__(self, file: str, field: str, reason: str) -> None:
        where = f"{file}: {field}" if field else file
        super().__init__(f"{where}: {reason}")
        self.file = file
        self.field = field
        self.reason = reason


class TemplateError(TextError):
    """The chat template could not be compiled, or did not accept what it was given.

    Attributes:
        message: one sentence, the template's own words when it called `raise_exception`.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidChatInput(TextError):
    """Messages or template arguments cannot be turned into what a template reads.

    Attributes:
        field: path inside the request, such as `messages[2].content[0].type`.
        reason: one sentence.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class NoChatTemplate(TextError):
    """The checkpoint brings no chat template, so messages cannot be rendered."""

    def __init__(self) -> None:
        super().__init__("this model has no chat template; send plain text or configure a template")


class ParserError(TextError):
    """A tool or reasoning parser that is not installed, does not load, or is not the only one."""


class StructureError(TextError):
    """What is asked of an output's form cannot be read.

    Attributes:
        field: within what was asked, dotted; empty where it is all of it.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.field = field
