"""The other backend: xgrammar, which compiles a grammar whole and then fills masks faster.

`_lowering` lists the keywords that it honours. It imports torch and computes no forced tokens.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xgrammar

from openinfer_contract import Grammar
from openinfer_grammar._backend import Accepted, MaskRows, num_mask_words
from openinfer_grammar._grammar_text import (
    ANY_OBJECT,
    check_text,
    lark_string,
    parse_choices,
    parse_json,
    parse_schema,
)
from openinfer_grammar._nesting import MAX_LEVELS, call_with_stack, check_levels
from openinfer_grammar._structural_tag import lower_structural_tag
from openinfer_grammar.errors import BackendUnavailable, GrammarRefused
from openinfer_grammar.xgrammar._lowering import honoured_schema, honoured_tag, is_honoured_regex

_JSON_FORM: Mapping[str, Any] = {"any_whitespace": False, "separators": (", ", ": ")}


class XGrammarBackend:
    """A `GrammarBackend` over xgrammar.

    Args:
        tokenizer_json: content of the checkpoint's tokenizer.json.
        vocab_size: ids of the model.
        eos_token_ids: ids that end an output, at least one.

    Raises:
        BackendUnavailable: the tokenizer cannot be read.
    """

    name = "xgrammar"

    def __init__(
        self, tokenizer_json: bytes, *, vocab_size: int, eos_token_ids: tuple[int, ...]
    ) -> None:
        self.vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        tokenizer = json.loads(tokenizer_json)
        tokens = _tokens(tokenizer)
        self._has_token = _bits([i for i, token in enumerate(tokens) if token], vocab_size)
        info = xgrammar.TokenizerInfo(
            tokens,
            _vocab_type(tokenizer),
            vocab_size=vocab_size,
            stop_token_ids=list(eos_token_ids),
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1)

    def compile(self, grammar: Grammar, /) -> "XGrammarMatcher":
        """See `GrammarBackend.compile`."""
        check_text(grammar)
        try:
            # Every grammar gets the large stack, because xgrammar does not limit the nesting of a
            # pattern: 28,000 brackets take 8 MB. The longest allowed text has less than ten times
            # as many.
            compiled = call_with_stack(MAX_LEVELS, lambda: self._compile(grammar))
        except RuntimeError as error:
            raise GrammarRefused(" ".join(str(error).split())) from error
        return XGrammarMatcher(
            xgrammar.GrammarMatcher(compiled),
            has_token=self._has_token,
            ends=_bits(self._eos_token_ids, self.vocab_size),
        )

    def _compile(self, grammar: Grammar) -> Any:
        compiler, text = self._compiler, grammar.text
        if grammar.kind == "json_object":
            return self._compile_schema(ANY_OBJECT)
        if grammar.kind == "json_schema":
            schema = parse_schema(text)
            check_levels("json_schema", text)
            return self._compile_schema(schema)
        if grammar.kind == "regex":
            if not is_honoured_regex(text):
                raise GrammarRefused("xgrammar does not support look-around in a regex")
            return compiler.compile_regex(text)
        if grammar.kind == "choice":
            return compiler.compile_grammar(
                "root ::= " + " | ".join(map(lark_string, parse_choices(text)))
            )
        if grammar.kind == "structural_tag":
            tag = parse_json(text)
            # Raises the errors that both backends share with the same message.
            check_levels("lark", lower_structural_tag(tag, honoured_schema))
            return compiler.compile_structural_tag(honoured_tag(tag, _ebnf))
        if "::=" not in text:
            raise GrammarRefused("xgrammar takes only EBNF grammars, with ::=")
        check_levels("lark", text)
        return compiler.compile_grammar(text)

    def _compile_schema(self, schema: Any) -> Any:
        return self._compiler.compile_json_schema(json.dumps(honoured_schema(schema)), **_JSON_FORM)


class XGrammarMatcher:
    """The `Matcher` of `XGrammarBackend`."""

    def __init__(self, matcher: Any, *, has_token: MaskRows, ends: MaskRows) -> None:
        self._matcher = matcher
        self._has_token = has_token
        self._ends = ends
        self._num_accepted = 0

    def fill_mask(self, rows: MaskRows, drafts: Sequence[int] = (), /) -> int:
        """See `Matcher.fill_mask`."""
        self._fill(rows, 0)
        num_rows = 1
        for draft in drafts:
            if not self._matcher.accept_token(draft):
                break
            self._fill(rows, num_rows)
            num_rows += 1
        if num_rows > 1:
            self._matcher.rollback(num_rows - 1)
        return num_rows

    def accept(self, token_ids: Sequence[int], /) -> Accepted:
        """See `Matcher.accept`."""
        num_tokens = 0
        for token_id in token_ids:
            if self._matcher.is_terminated() or not self._matcher.accept_token(int(token_id)):
                break
            num_tokens += 1
        self._num_accepted += num_tokens
        return Accepted(num_tokens, ())

    def rollback(self, num_tokens: int, /) -> None:
        """See `Matcher.rollback`."""
        if not 0 <= num_tokens <= self._num_accepted:
            raise ValueError(
                f"cannot roll back {num_tokens} tokens: {self._num_accepted} were accepted"
            )
        if num_tokens:
            self._matcher.rollback(num_tokens)
            self._num_accepted -= num_tokens

    def _fill(self, rows: MaskRows, index: int) -> None:
        if not self._matcher.is_terminated():
            # The Python wrapper needs a torch tensor; the native handle takes a numpy array.
            self._matcher._handle.fill_next_token_bitmask(rows.view(np.int32), index, False)
            rows[index] &= self._has_token
        else:
            rows[index] = self._ends


def _ebnf(schema: dict[str, Any]) -> str:
    """Returns a schema as EBNF, because a schema in a tag would get the library's spelling."""
    return str(xgrammar.Grammar.from_json_schema(json.dumps(schema), **_JSON_FORM))


def _bits(token_ids: Sequence[int], vocab_size: int) -> MaskRows:
    """Returns a mask row that allows these ids."""
    bits = np.zeros(32 * num_mask_words(vocab_size), np.uint8)
    bits[list(token_ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


def _tokens(tokenizer: Mapping[str, Any]) -> list[str]:
    """Returns tokens by id, as tokenizer.json spells them; empty strings for missing ids."""
    try:
        vocab = tokenizer["model"]["vocab"]
        by_id = {token_id: token for token, token_id in vocab.items()}
        by_id |= {entry["id"]: entry["content"] for entry in tokenizer.get("added_tokens", ())}
    except (KeyError, TypeError, AttributeError) as error:
        reason = "xgrammar needs a tokenizer.json whose model has a vocab of tokens and ids"
        raise BackendUnavailable(reason) from error
    return [by_id.get(token_id, "") for token_id in range(max(by_id) + 1)]


def _vocab_type(tokenizer: Mapping[str, Any]) -> Any:
    """Returns the way in which tokens spell bytes, from the decoder."""
    decoder = json.dumps(tokenizer.get("decoder"))
    if "ByteLevel" in decoder:
        return xgrammar.VocabType.BYTE_LEVEL
    if "ByteFallback" in decoder:
        return xgrammar.VocabType.BYTE_FALLBACK
    return xgrammar.VocabType.RAW
