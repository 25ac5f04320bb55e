"""`SamplingParams`: the parameters of a generation by `LLM`."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from types import NoneType
from typing import Any, get_args

from openinfer.errors import RequestRejected
from openinfer_contract import Grammar, Rejected, Sampling, check_sampling
from openinfer_text import SamplingFields, client_field, grammar_of_structure


def _is_int(value: Any) -> bool:
    # Integral and Real, not int and float: numbers also come from numpy arrays.
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_list(value: Any) -> bool:
    is_list = isinstance(value, Collection) and not isinstance(value, bytes | Mapping)
    return is_list and all(map(_is_text, value))


def _is_id_list(value: Any) -> bool:
    is_list = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
    return is_list and all(map(_is_int, value))


def _is_bias(value: Any) -> bool:
    is_mapping = isinstance(value, Mapping)
    return is_mapping and all(map(_is_int, value)) and all(map(_is_number, value.values()))


_Type = tuple[str, Callable[[Any], bool]]
_INT: _Type = ("an integer", _is_int)
_NUMBER: _Type = ("a number", _is_number)
_SWITCH: _Type = ("True or False", lambda value: isinstance(value, bool))
_TEXT: _Type = ("a text", _is_text)
_IDS: _Type = ("a list of token ids", _is_id_list)
_TYPES: Mapping[str, _Type] = {
    **dict.fromkeys(("n", "max_tokens", "min_tokens", "top_k", "seed"), _INT),
    **dict.fromkeys(("logprobs", "prompt_logprobs", "priority", "deadline_ms"), _INT),
    **dict.fromkeys(("temperature", "top_p", "min_p", "repetition_penalty"), _NUMBER),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), _NUMBER),
    **dict.fromkeys(("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"), _SWITCH),
    "spaces_between_special_tokens": _SWITCH,
    **dict.fromkeys(("stop_token_ids", "allowed_token_ids", "logprob_token_ids"), _IDS),
    "stop": ("a text or a list of texts", _is_text_list),
    "bad_words": (
        "a list of texts",
        lambda value: _is_text_list(value) and not isinstance(value, str),
    ),
    "logit_bias": ("a mapping from token ids to numbers", _is_bias),
    "logprobs_mode": ("raw or processed", lambda value: value in ("raw", "processed")),
    **dict.fromkeys(("cache_salt", "tenant", "session_id"), _TEXT),
    "structured_outputs": ("a mapping", lambda value: isinstance(value, Mapping)),
}
"""For each field, a description of the valid values, and a check for values other than None."""

_AT_LEAST = {
    "n": 1,
    "max_tokens": 1,
    "min_tokens": 0,
    "top_k": -1,
    "logprobs": 0,
    "prompt_logprobs": 0,
    "deadline_ms": 1,
}


def to_request_rejected(rejected: Rejected) -> RequestRejected:
    """Converts a rejection; its field gets the name that it has in `SamplingParams`."""
    field, message = client_field(rejected.field), rejected.message
    if rejected.field and message.startswith(rejected.field):
        message = field + message[len(rejected.field) :]
    return RequestRejected(message, field)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams(SamplingFields):
    """The parameters of a generation: the fields of the HTTP API, with the same meaning.

    None leaves the choice to the checkpoint's generation_config.json.

    Raises:
        RequestRejected: a value has the wrong type or is out of its range.
    """

    n: int = 1
    """Number of samples of each prompt."""
    max_tokens: int | None = 16
    """Maximum number of output tokens. None: as many as the context has room for."""
    structured_outputs: Mapping[str, Any] | None = None
    """A constraint on the output, one of `json`, `regex`, `choice`, `grammar`, `structural_tag` and
    `json_object`; see docs/guides/structured-output.md."""

    def __post_init__(self) -> None:
        self._check_types()
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                off = "; 0 and -1 switch it off" if name == "top_k" else ""
                raise RequestRejected(f"{name} must be at least {least}{off}", name)
        if "" in self.stops:
            raise RequestRejected("stop must not hold an empty text", "stop")
        if "" in self.bad_words:
            raise RequestRejected("bad_words must not hold an empty text", "bad_words")
        if self.cache_salt == "":
            raise RequestRejected("cache_salt must not be empty", "cache_salt")
        for name, is_asked in (
            ("logprob_token_ids", len(self.logprob_token_ids) > 0),
            ("logprobs_mode", self.logprobs_mode != "raw"),
        ):
            if is_asked and self.logprobs is None:
                raise RequestRejected(f"{name} is only allowed together with logprobs", name)
        self._check_sampling()

    def _check_types(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if value is None and NoneType in get_args(entry.type):
                continue
            what, is_one = _TYPES[entry.name]
            if not is_one(value):
                raise RequestRejected(f"{entry.name} must be {what}, not {value!r:.60}", entry.name)

    def _check_sampling(self) -> None:
        given = {
            name: value
            for name in ("temperature", "top_p", "min_p", "repetition_penalty")
            if (value := getattr(self, name)) is not None
        }
        rejected = check_sampling(
            Sampling(
                presence_penalty=self.presence_penalty,
                frequency_penalty=self.frequency_penalty,
                **given,
            )
        )
        if rejected is not None:
            raise to_request_rejected(rejected)

    @property
    def grammar(self) -> Grammar | None:
        """The constraint on the output as a struct of the contract.

        Raises:
            StructureError: a field of `structured_outputs` cannot be read. The error names it.
        """
        asked = self.structured_outputs
        return None if asked is None else grammar_of_structure(asked)
