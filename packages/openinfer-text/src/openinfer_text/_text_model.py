"""`TextModel`: tokenizer, chat template, parsers and defaults of one checkpoint folder."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from openinfer_contract import Grammar, pack_ids
from openinfer_text._checkpoint_files import read_chat_templates, read_json, read_number
from openinfer_text._generation_defaults import GenerationDefaults
from openinfer_text.errors import CheckpointTextError, NoChatTemplate
from openinfer_text.output._output_text import OutputText
from openinfer_text.output._stop_strings import StopSet
from openinfer_text.parsers._call_ids import name_calls
from openinfer_text.parsers._installed_parsers import choose_parser
from openinfer_text.parsers._output_parser import (
    OutputParser,
    ParseContext,
    ParserFactory,
    ReasoningMarks,
)
from openinfer_text.templates._chat_template import ChatTemplate
from openinfer_text.templates._messages import ContentFormat
from openinfer_text.templates._request_templates import RequestTemplates
from openinfer_text.templates._turn_tokens import TurnTokens, find_boundaries, learn_turn_tokens
from openinfer_text.tokens._tokenizer import DEFAULT_SEGMENT_CACHE_BYTES, Tokenizer

_TURN_CHARS = 32


class ChatPrompt(NamedTuple):
    """A rendered and encoded chat."""

    text: str
    """Text that the template rendered."""
    token_ids: bytes
    """Little-endian u32 column."""
    boundaries: tuple[int, ...]
    """Token positions at which a message ends, ascending; hints for the prefix cache."""
    turn: str
    """The end of `text` that belongs to the turn that the model continues, for example an open
    `<think>`."""
    call_ids: tuple[str, ...] = ()
    """Ids of the tool calls in the messages, in order, as the model reads them."""


class TextModel:
    """Tokenizer, chat template and generation defaults of one checkpoint; shared by all threads.

    Attributes:
        tokenizer: text to ids and back.
        chat_template: None for a checkpoint without one.
        generation: recommended sampling parameters.
        stop_token_ids: ids that end a generation, ascending: `eos_token_id` of
            generation_config.json (otherwise of config.json) and the tokenizer's own EOS.
        max_model_len: maximum sequence length that config.json declares; None without one.
        tool_parser: finds tool calls in outputs; None if no installed parser fits the model.
        reasoning_parser: finds reasoning in outputs; None if the model writes no reasoning.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        chat_template: ChatTemplate | None = None,
        generation: GenerationDefaults | None = None,
        stop_token_ids: Collection[int] = (),
        max_model_len: int | None = None,
        tool_parser: ParserFactory | None = None,
        reasoning_parser: ParserFactory | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.generation = generation or GenerationDefaults()
        self.stop_token_ids = tuple(sorted(stop_token_ids))
        self.max_model_len = max_model_len
        self.tool_parser = tool_parser
        self.reasoning_parser = reasoning_parser
        turns = TurnTokens()
        if chat_template is not None:
            turns = learn_turn_tokens(chat_template, tokenizer.added_tokens)
        self._request_templates = RequestTemplates(tokenizer.special_tokens)
        self._borders = turns.openers | turns.closers
        self._opener_ids = [tokenizer.added_tokens[token] for token in turns.openers]
        self._closer_ids = [tokenizer.added_tokens[token] for token in turns.closers]

    @classmethod
    def from_folder(
        cls,
        path: str | Path,
        *,
        chat_template: str | None = None,
        content_format: ContentFormat | Literal["auto"] = "auto",
        tool_parser: str = "auto",
        reasoning_parser: str = "auto",
        segment_cache_bytes: int = DEFAULT_SEGMENT_CACHE_BYTES,
        is_accelerated: bool = False,
        verdict_folder: Path | None = None,
    ) -> "TextModel":
        """Reads a checkpoint folder; takes less than a second for 151,000 tokens.

        Args:
            path: the folder.
            chat_template: Jinja source to use instead of the checkpoint's.
            content_format: form of message content that the template reads.
            tool_parser: an installed parser, `none`, or `auto`: the one that claims the template.
            reasoning_parser: as `tool_parser`.
            segment_cache_bytes: size of the tokenizer's segment cache.
            is_accelerated: as `Tokenizer.from_folder`.
            verdict_folder: as `Tokenizer.from_folder`.

        Raises:
            CheckpointTextError: a file or field is missing or wrong; names it.
            TemplateError: the template is not valid Jinja.
            ParserError: a parser is not known, or several claim the template.
        """
        folder = Path(path)
        tokenizer = Tokenizer.from_folder(
            folder,
            segment_cache_bytes=segment_cache_bytes,
            is_accelerated=is_accelerated,
            verdict_folder=verdict_folder,
        )
        sources: Mapping[str, str]
        if chat_template is not None:
            sources = {"default": chat_template}
        else:
            sources = read_chat_templates(folder, read_json(folder, "tokenizer_config.json") or {})
        template = None
        if sources:
            template = ChatTemplate(
                sources, special_tokens=tokenizer.special_tokens, content_format=content_format
            )
        config = _text_config(read_json(folder, "config.json") or {})
        generation = read_json(folder, "generation_config.json") or {}
        stop_ids = _eos_ids("generation_config.json", generation) or _eos_ids("config.json", config)
        if tokenizer.eos_token_id is not None:
            stop_ids |= {tokenizer.eos_token_id}
        return cls(
            tokenizer,
            chat_template=template,
            generation=GenerationDefaults.from_config(generation),
            stop_token_ids=stop_ids,
            max_model_len=read_number("config.json", config, "max_position_embeddings", int),
            tool_parser=choose_parser(
                "tool", tool_parser, None if template is None else template.tools_source
            ),
            reasoning_parser=choose_parser("reasoning", reasoning_parser, sources.get("default")),
        )

    def encode(self, text: str, *, add_special_tokens: bool = True) -> bytes:
        """Returns the token ids of a text, as `Tokenizer.encode`."""
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def encode_words(self, words: Iterable[str]) -> tuple[bytes, ...]:
        """Returns the ids of each word as it stands and after a space, for `bad_words`."""
        columns = [
            self.encode(spelling, add_special_tokens=False)
            for word in words
            for spelling in (word, f" {word}")
        ]
        return tuple(dict.fromkeys(column for column in columns if column))

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_special_tokens: bool = False,
        chat_template: str | None = None,
    ) -> ChatPrompt:
        """Renders and encodes a chat; parameters as `ChatTemplate.render`.

        Special tokens inside message contents become their ids, as they do in vLLM and
        transformers, so content can imitate turns. `add_special_tokens` adds BOS again, for
        templates that leave it to the tokenizer. `chat_template` is a template of the request,
        used instead of the checkpoint's; boundaries and the open turn are still found by the tokens
        with which the checkpoint's own template ends messages.

        Raises:
            NoChatTemplate: the checkpoint has none, and none is given.
            InvalidChatInput: a field cannot be used; names it.
            TemplateError: the template fails or refuses the messages.
        """
        render: Callable[..., str]
        if chat_template is not None:
            render = partial(self._request_templates.render, chat_template)
        elif self.chat_template is not None:
            render = self.chat_template.render
        else:
            raise NoChatTemplate
        messages, call_ids = name_calls(messages, self.tool_parser)
        text = render(
            messages,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            chat_template_kwargs=chat_template_kwargs,
        )
        token_ids = self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return ChatPrompt(
            text,
            token_ids,
            self._boundaries(token_ids),
            self._open_turn(text),
            call_ids,
        )

    def _open_turn(self, text: str) -> str:
        """Returns the text after the last message border; without a border, the last characters."""
        starts = [text.rfind(border) + len(border) for border in self._borders if border in text]
        return text[max(starts, default=-_TURN_CHARS) :]

    def _boundaries(self, token_ids: bytes) -> tuple[int, ...]:
        bos = self.tokenizer.bos_token_id
        starts_with_bos = bos is not None and token_ids.startswith(pack_ids((bos,)))
        return find_boundaries(
            token_ids,
            opener_ids=self._opener_ids,
            closer_ids=self._closer_ids,
            start=1 if starts_with_bos else 0,
        )

    def close(self) -> None:
        """Ends background work, as `Tokenizer.close`."""
        self.tokenizer.close()

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Returns the text of ids, as `Tokenizer.decode`."""
        return self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def output(
        self,
        *,
        stops: StopSet | Sequence[str] = (),
        include_stop_str_in_output: bool = False,
        stop_token_ids: Collection[int] | None = None,
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
        shown_tokens: Collection[str] = (),
        spaces_between_special_tokens: bool = True,
        context_ids: Iterable[int] = (),
        is_located: bool = False,
    ) -> OutputText:
        """Returns a new output stream, as `OutputText`; stop ids are the checkpoint's unless given.

        Raises:
            ValueError: a stop string is empty.
        """
        return OutputText(
            self.tokenizer,
            stops=stops,
            include_stop_str_in_output=include_stop_str_in_output,
            stop_token_ids=self.stop_token_ids if stop_token_ids is None else stop_token_ids,
            min_tokens=min_tokens,
            skip_special_tokens=skip_special_tokens,
            shown_tokens=shown_tokens,
            spaces_between_special_tokens=spaces_between_special_tokens,
            context_ids=context_ids,
            is_located=is_located,
        )

    def after_reasoning(self, grammar: Grammar, turn: str) -> Grammar:
        """Returns a grammar that applies once the reasoning of an output has ended.

        If the prompt has opened the reasoning, the grammar starts after the reasoning's end mark.
        If the model may open reasoning itself, the output may begin with it. If the prompt has
        closed the reasoning, the grammar applies from the first token.

        Args:
            grammar: grammar of the output after its reasoning.
            turn: `turn` of the `ChatPrompt`.
        """
        parser: object = self.reasoning_parser
        if not isinstance(parser, ReasoningMarks):
            return grammar
        opener, closer = parser.reasoning_opener, parser.reasoning_closer
        is_open = turn.rfind(opener) > turn.rfind(closer)
        if not is_open and closer in turn:
            return grammar
        added = self.tokenizer.added_tokens
        if is_open:
            ends = self.tokenizer.encode(closer, add_special_tokens=False)
            return Grammar(kind=grammar.kind, text=grammar.text, start_after=ends)
        if opener not in added or closer not in added:
            return grammar
        return Grammar(
            kind=grammar.kind,
            text=grammar.text,
            start_after=pack_ids((added[closer],)),
            may_open_with=pack_ids((added[opener],)),
        )

    def parser(
        self,
        turn: str,
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        call_ids: Sequence[str] = (),
        has_parallel_calls: bool = True,
        is_call_named: bool = False,
    ) -> OutputParser | None:
        """Returns a parser for one output of a chat; None if it needs no parsing.

        Its `markers` must be among the `shown_tokens` of the output stream.

        Args:
            turn: `turn` of the `ChatPrompt`.
            tools: tools of the request. Without tools, tool calls are not looked for.
            call_ids: `call_ids` of the `ChatPrompt`.
            has_parallel_calls: as `OutputParser`.
            is_call_named: as `OutputParser`.
        """
        tool_parser = self.tool_parser if tools else None
        if tool_parser is None and self.reasoning_parser is None:
            return None
        return OutputParser(
            ParseContext(turn=turn, tools=tuple(tools or ()), call_ids=tuple(call_ids)),
            reasoning=self.reasoning_parser,
            tools=tool_parser,
            has_parallel_calls=has_parallel_calls,
            is_call_named=is_call_named,
        )


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    nested = config.get("text_config")
    return {**config, **nested} if isinstance(nested, dict) else config


def _eos_ids(file: str, config: Mapping[str, Any]) -> set[int]:
    value = config.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token_id in ids:
        if not isinstance(token_id, int) or isinstance(token_id, bool) or token_id < 0:
            raise CheckpointTextError(file, "eos_token_id", "must be a token id or a list of them")
    return set(ids)
