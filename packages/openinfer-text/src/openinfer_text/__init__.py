"""Text to token ids and back: tokenizer, templates, detokenisation, stop strings."""

from openinfer_text._detokenizer import IncrementalDetokenizer
from openinfer_text._engine import AddedToken, HuggingFaceEngine, Pipeline, TokenizerEngine
from openinfer_text._generation import GenerationDefaults
from openinfer_text._messages import ContentFormat
from openinfer_text._model import ChatPrompt, TextModel
from openinfer_text._output import OutputText, TextDelta
from openinfer_text._stop import StopStrings
from openinfer_text._template import ChatTemplate
from openinfer_text._tokenizer import Tokenizer
from openinfer_text.errors import (
    CheckpointTextError,
    InvalidChatInput,
    NoChatTemplate,
    TemplateError,
    TextError,
)

__all__ = [
    # a checkpoint's text in one object
    "TextModel",
    "ChatPrompt",
    "GenerationDefaults",
    # ids and text
    "Tokenizer",
    "TokenizerEngine",
    "HuggingFaceEngine",
    "Pipeline",
    "AddedToken",
    # chats
    "ChatTemplate",
    "ContentFormat",
    # output streams
    "OutputText",
    "TextDelta",
    "IncrementalDetokenizer",
    "StopStrings",
    # errors
    "TextError",
    "CheckpointTextError",
    "TemplateError",
    "InvalidChatInput",
    "NoChatTemplate",
]
