"""What a user of `LLM` asks for, and how it becomes the contract's terms."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from types import NoneType
from typing import Any, get_args

from openinfer.errors import RequestRejected
from openinfer_contract import (
    GenerateRequest,
    Grammar,
    LogprobOptions,
    Rejected,
    Sampling,
    StopRules,
    check_sampling,
)
from openinfer_text import GenerationDefaults, grammar_of_structure


def _is_int(value: Any) -> bool:
    # Integral and Real, not int and float: numbers also come out of numpy arrays.
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _are_texts(value: Any) -> bool:
    is_list = isinstance(value, Collection) and not isinstance(value, bytes | Mapping)
    return is_list and all(isinstance(item, str) for item in value)


def _are_ids(value: Any) -> bool:
    is_list = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
    return is_list and all(map(_is_int, value))


def _is_bias(value: Any) -> bool:
    is_mapping = isinstance(value, Mapping)
    return is_mapping and all(map(_is_int, value)) and all(map(_is_number, value.values()))


_Type = tuple[str, Callable[[Any], bool]]
_INT: _Type = ("an integer", _is_int)
_NUMBER: _Type = ("a number", _is_number)
_SWITCH: _Type = ("True or False", lambda value: isinstance(value, bool))
_IDS: _Type = ("a list of token ids", _are_ids)
_TYPES: Mapping[str, _Type] = {
    **dict.fromkeys(("n", "max_tokens", "min_tokens", "top_k", "seed", "logprobs"), _INT),
    **dict.fromkeys(("temperature", "top_p", "min_p", "repetition_penalty"), _NUMBER),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), _NUMBER),
    **dict.fromkeys(("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"), _SWITCH),
    **dict.fromkeys(("stop_token_ids", "allowed_token_ids"), _IDS),
    "stop": ("a text or a list of texts", _are_texts),
    "logit_bias": ("a mapping from token ids to numbers", _is_bias),
    "structured_outputs": ("a mapping", lambda value: isinstance(value, Mapping)),
}
"""By field, what its values are, None aside, and whether a value is one."""


def refused(rejected: Rejected) -> RequestRejected:
    """A refusal in the names that `LLM` has for things."""
    message, field = rejected.message, rejected.field
    name = field.removeprefix("sampling.").removeprefix("stop.")
    if field and message.startswith(field):
        message = name + message[len(field) :]
    return RequestRejected(message, field)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to generate. None leaves a choice to the checkpoint's generation_config.json.

    Raises:
        RequestRejected: a value is of another type than its field, a number out of its range, or a
            stop string empty.
    """

    n: int = 1
    """Samples of each prompt."""
    max_tokens: int | None = 16
    """Output tokens at most; None: as many as the context has room for."""
    min_tokens: int = 0
    temperature: float | None = None
    top_k: int | None = None
    """0 and -1 switch it off."""
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    """The samples of a prompt draw from seed, seed + 1, ..."""
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    """Logprobs of each output token and of this many of the most likely ones."""
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: Sequence[int] | None = None
    structured_outputs: Mapping[str, Any] | None = None
    """What the output is held to, one of `json`, `regex`, `choice`, `grammar`, `structural_tag` and
    `json_object`; see docs/guides/structured-output.md."""

    def __post_init__(self) -> None:
        self._check_types()
        if self.n < 1:
            raise RequestRejected("n must be at least 1", "n")
        if "" in self.stops:
            raise RequestRejected("stop must not hold an empty text", "stop")
        if self.top_k is not None and self.top_k < -1:
            message = "top_k must be at least 1; 0 and -1 switch it off"
            raise RequestRejected(message, "sampling.top_k")
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
            raise refused(rejected)

    def _check_types(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if value is None and NoneType in get_args(entry.type):
                continue
            what, is_one = _TYPES[entry.name]
            if not is_one(value):
                raise RequestRejected(f"{entry.name} must be {what}, not {value!r:.60}", entry.name)

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def grammar(self) -> Grammar | None:
        """What the output is held to, in the contract's terms.

        Raises:
            StructureError: naming the field of `structured_outputs` that cannot be used.
        """
        asked = self.structured_outputs
        return None if asked is None else grammar_of_structure(asked)

    def lower(
        self,
        request_id: str,
        prompt_token_ids: bytes,
        *,
        sample: int,
        max_model_len: int,
        defaults: GenerationDefaults,
        eos_token_ids: Sequence[int] = (),
        grammar: Grammar | None = None,
    ) -> GenerateRequest:
        """One sample of one prompt as the engine takes it; output is clamped to the room left.

        Args:
            request_id: names it.
            prompt_token_ids: u32 column.
            sample: which one of the prompt's samples.
            max_model_len: prompt and output tokens at most.
            defaults: what None stands for.
            eos_token_ids: ids that end a sequence besides those the engine knows.
            grammar: of these parameters, behind the prompt's reasoning.
        """
        room = max(1, max_model_len - (len(prompt_token_ids) >> 2))
        extra = () if self.ignore_eos else eos_token_ids
        return GenerateRequest(
            request_id=request_id,
            prompt_token_ids=prompt_token_ids,
            stop=StopRules(
                max_tokens=room if self.max_tokens is None else min(self.max_tokens, room),
                min_tokens=self.min_tokens,
                stop_token_ids=tuple(dict.fromkeys((*self.stop_token_ids, *extra))),
                ignore_eos=self.ignore_eos,
            ),
            sampling=defaults.sampling(
                temperature=self.temperature,
                top_k=self.top_k,
                top_p=self.top_p,
                min_p=self.min_p,
                repetition_penalty=self.repetition_penalty,
                presence_penalty=self.presence_penalty,
                frequency_penalty=self.frequency_penalty,
                seed=self.seed,
                sample=sample,
                logit_bias=self.logit_bias,
                allowed_token_ids=self.allowed_token_ids,
            ),
            logprobs=None if self.logprobs is None else LogprobOptions(num_top=self.logprobs),
            grammar=grammar,
        )
