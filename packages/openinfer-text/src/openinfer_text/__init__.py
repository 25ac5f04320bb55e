"""Text to token ids and back: tokenizer, templates, detokenisation, stop strings, parsers."""

from openinfer_text._acceleration import AcceleratedEngine
from openinfer_text._assistant import AssistantTurn, ToolCall
from openinfer_text._call_grammar import CallForm, grammar_of_calls
from openinfer_text._call_ids import CallRenaming
from openinfer_text._detokenizer import IncrementalDetokenizer
from openinfer_text._engine import AddedToken, HuggingFaceEngine, Pipeline, TokenizerEngine
from openinfer_text._generation import GenerationDefaults
from openinfer_text._installed_parsers import (
    PARSERS,
    check_parser,
    choose_parser,
    installed_parsers,
)
from openinfer_text._messages import ContentFormat
from openinfer_text._model import ChatPrompt, TextModel
from openinfer_text._output import OutputText, TextDelta
from openinfer_text._parser import (
    OutputParser,
    ParseContext,
    ParserFactory,
    ParserStream,
    ReasoningMarks,
    StatefulStream,
)
from openinfer_text._pieces import (
    Content,
    Piece,
    Reasoning,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from openinfer_text._stop import StopSet, StopStrings
from openinfer_text._structured import grammar_of_response_format, grammar_of_structure
from openinfer_text._template import ChatTemplate
from openinfer_text._template_process import MAX_TEMPLATE_CHARS
from openinfer_text._tokenizer import Tokenizer
from openinfer_text._tool_definitions import check_tools
from openinfer_text.errors import (
    CheckpointTextError,
    InvalidChatInput,
    NoChatTemplate,
    ParserError,
    StructureError,
    TemplateError,
    TemplateProcessLost,
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
    "AcceleratedEngine",
    "Pipeline",
    "AddedToken",
    # chats
    "ChatTemplate",
    "ContentFormat",
    "MAX_TEMPLATE_CHARS",
    "check_tools",
    # output streams
    "OutputText",
    "TextDelta",
    "IncrementalDetokenizer",
    "StopSet",
    "StopStrings",
    # reasoning and tool calls
    "OutputParser",
    "ParserFactory",
    "ParserStream",
    "StatefulStream",
    "ParseContext",
    "installed_parsers",
    "check_parser",
    "choose_parser",
    "PARSERS",
    "Piece",
    "Content",
    "Reasoning",
    "ToolCallStart",
    "ToolCallArguments",
    "ToolCallEnd",
    "AssistantTurn",
    "ToolCall",
    # the form of an output
    "grammar_of_structure",
    "grammar_of_response_format",
    "grammar_of_calls",
    "CallForm",
    "CallRenaming",
    "ReasoningMarks",
    # errors
    "TextError",
    "CheckpointTextError",
    "TemplateError",
    "TemplateProcessLost",
    "InvalidChatInput",
    "NoChatTemplate",
    "ParserError",
    "StructureError",
]
