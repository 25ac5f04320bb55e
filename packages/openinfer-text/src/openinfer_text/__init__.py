"""Text to token ids and back: tokenizer, templates, detokenisation, stop strings, parsers."""

from openinfer_text._generation_defaults import GenerationDefaults
from openinfer_text._request_lowering import RequestLowering, SamplingFields, client_field
from openinfer_text._structured_outputs import grammar_of_response_format, grammar_of_structure
from openinfer_text._text_model import ChatPrompt, TextModel
from openinfer_text.errors import (
    CheckpointTextError,
    FieldRejected,
    InvalidChatInput,
    NoChatTemplate,
    ParserError,
    StructureError,
    TemplateError,
    TextError,
)
from openinfer_text.output._output_stream import OutputDelta, OutputStream
from openinfer_text.output._output_text import OutputText, TextDelta
from openinfer_text.output._stop_strings import StopSet, StopStrings
from openinfer_text.parsers._assistant_turn import AssistantTurn, ToolCall
from openinfer_text.parsers._call_grammar import CallForm, grammar_of_calls
from openinfer_text.parsers._call_ids import CallRenaming
from openinfer_text.parsers._installed_parsers import (
    PARSERS,
    check_parser,
    choose_parser,
    installed_parsers,
)
from openinfer_text.parsers._output_parser import (
    OutputParser,
    ParseContext,
    ParserFactory,
    ParserStream,
    ReasoningMarks,
    StatefulStream,
)
from openinfer_text.parsers._pieces import (
    Content,
    Piece,
    Reasoning,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from openinfer_text.parsers._tool_definitions import check_tools
from openinfer_text.templates._chat_template import ChatTemplate
from openinfer_text.templates._messages import ContentFormat
from openinfer_text.templates._request_templates import MAX_TEMPLATE_CHARS
from openinfer_text.tokens._accelerated_engine import AcceleratedEngine
from openinfer_text.tokens._detokenizer import IncrementalDetokenizer
from openinfer_text.tokens._tokenizer import Tokenizer
from openinfer_text.tokens._tokenizer_engine import (
    AddedToken,
    HuggingFaceEngine,
    Pipeline,
    TokenizerEngine,
)

__all__ = [
    # a checkpoint's text in one object
    "TextModel",
    "ChatPrompt",
    "GenerationDefaults",
    # requests
    "RequestLowering",
    "SamplingFields",
    "client_field",
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
    "OutputStream",
    "OutputDelta",
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
    "InvalidChatInput",
    "NoChatTemplate",
    "ParserError",
    "StructureError",
    "FieldRejected",
]
