"""`RequestLowering`: from the sampling fields of a client's request to engine requests.

HTTP and `LLM` share it, so a field means the same in both and is refused for the same reasons.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from openinfer_contract import (
    CacheOptions,
    EngineInfo,
    GenerateRequest,
    Grammar,
    LogprobOptions,
    PromptLogprobOptions,
    Rejected,
    Sampling,
    StopRules,
    check_length,
    check_request,
    num_ids,
    pack_ids,
    unpack_ids,
)
from openinfer_text._generation_defaults import GenerationDefaults
from openinfer_text._text_model import TextModel
from openinfer_text.errors import FieldRejected
from openinfer_text.output._output_stream import OutputStream
from openinfer_text.output._stop_strings import StopSet
from openinfer_text.parsers._output_parser import OutputParser

_PROBE = pack_ids((0,))
_CONTEXT_BYTES = 32
"""The last eight ids of a prompt. The text of the first output tokens may depend on them."""
_CLIENT_FIELDS = {
    "cache.salt": "cache_salt",
    "logprobs.token_ids": "logprob_token_ids",
    "logprobs.mode": "logprobs_mode",
    "deadline": "deadline_ms",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingFields:
    """The fields of a client's request that shape its output.

    None leaves the choice to the checkpoint's generation_config.json.
    """

    max_tokens: int | None = None
    """Maximum number of output tokens. None: as many as the context has room for."""
    min_tokens: int = 0
    """Minimum number of output tokens. Stop tokens and stop strings are ignored until then."""
    temperature: float | None = None
    """0 always takes the most likely token."""
    top_k: int | None = None
    """Keeps the k most likely tokens; 0 and -1 keep all."""
    top_p: float | None = None
    """Keeps the smallest set of tokens whose probabilities add up to this."""
    min_p: float | None = None
    """Drops tokens below this share of the largest probability."""
    seed: int | None = None
    """Makes sampling reproducible. The samples of a prompt use seed, seed + 1, ..."""
    repetition_penalty: float | None = None
    """Values above 1 make tokens of the prompt and the output less likely."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens that occur in the output."""
    frequency_penalty: float = 0.0
    """Subtracted from the logits of tokens once for each occurrence in the output."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to logits, by token id."""
    allowed_token_ids: Sequence[int] | None = None
    """Only these tokens are sampled."""
    bad_words: Sequence[str] = ()
    """Texts that must not occur in the output, as sequences of tokens."""
    stop: str | Sequence[str] = ()
    """One string or several that end the output and are not part of it."""
    stop_token_ids: Sequence[int] = ()
    """Tokens that end the output."""
    ignore_eos: bool = False
    """Whether to continue after the model's own end of text."""
    include_stop_str_in_output: bool = False
    """Whether the text includes the string or token that ended it."""
    skip_special_tokens: bool = True
    """Whether to leave special tokens out of the text."""
    spaces_between_special_tokens: bool = True
    """Whether special tokens that are shown have spaces between them."""
    logprobs: int | None = None
    """Returns the logprobs of output tokens, with this many alternatives to each."""
    logprob_token_ids: Sequence[int] = ()
    """Tokens whose logprobs are returned at every position; only with `logprobs`."""
    logprobs_mode: Literal["raw", "processed"] = "raw"
    """raw: the model's own logprobs. processed: those that were sampled from; only with
    `logprobs`."""
    prompt_logprobs: int | None = None
    """Returns the logprobs of the prompt, with this many alternatives to each token."""
    cache_salt: str | None = None
    """Cached prompts are shared only with requests of the same salt."""
    priority: int = 0
    """Lower values run earlier, under policies that use it."""
    deadline_ms: int | None = None
    """Milliseconds after which the request fails."""
    tenant: str = ""
    """Name of the client's tenant, for policies that share capacity between tenants."""
    session_id: str = ""
    """Name of the conversation that the request belongs to."""

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


def client_field(name: str) -> str:
    """Returns a client's name of a field of `GenerateRequest`, such as `sampling.top_k`."""
    bare = name.removeprefix("sampling.").removeprefix("stop.")
    return _CLIENT_FIELDS.get(name, bare)


class RequestLowering:
    """Builds the engine requests of one client request, one for each sample of each prompt.

    Attributes:
        eos_token_ids: ids at which the model ends; `stop_reason` does not name them.
        stop_token_ids: all ids at which the engine ends a sequence of this request.
        grammar: the grammar of the output, or None. It may be replaced before `build`.
        limit_s: the server's time limit in seconds; None if there is none, or if the request's own
            deadline is earlier.
    """

    def __init__(
        self,
        fields: SamplingFields,
        info: EngineInfo,
        *,
        defaults: GenerationDefaults,
        eos_token_ids: Collection[int],
        bad_words: tuple[bytes, ...] = (),
        grammar: Grammar | None = None,
        default_max_tokens: int | None = None,
        timeout_s: float | None = None,
        trace_parent: str = "",
        top_logprobs_field: str = "logprobs",
    ) -> None:
        """Lowers and checks the fields, before a prompt is tokenised.

        Args:
            fields: what the client asks for.
            info: the engine's limits and features.
            defaults: the checkpoint's, for fields that are None.
            eos_token_ids: ids at which the model ends, from the checkpoint.
            bad_words: `TextModel.encode_words` of the fields' `bad_words`.
            grammar: the grammar of the output.
            default_max_tokens: maximum output tokens if the fields do not set it; None: as many as
                the context has room for.
            timeout_s: the server's time limit for any request.
            trace_parent: W3C `traceparent` of the client's request.
            top_logprobs_field: the client's name of the field that counts alternatives.

        Raises:
            FieldRejected: the engine would refuse the request, whatever its prompt is.
        """
        self._fields = fields
        self._info = info
        self._defaults = defaults
        self._bad_words = bad_words
        self._default_max_tokens = default_max_tokens
        self._trace_parent = trace_parent
        self.grammar = grammar
        self._stop_set = StopSet(fields.stops)
        self._arrival = time.monotonic()
        self._set_deadline(timeout_s)
        self._check_ids()
        self._first_sampling = self._lower_sampling(0)
        self._set_stops(eos_token_ids)
        self._check_counts(top_logprobs_field)
        self._logprobs, self._prompt_logprobs = self._lower_logprobs()
        _raise_if(check_request(self._build("probe", _PROBE), info))

    def build(
        self, request_id: str, prompt_token_ids: bytes, *, boundaries: bytes = b"", sample: int = 0
    ) -> GenerateRequest:
        """Returns the engine request of one sample of one prompt.

        Args:
            request_id: unique among the engine's live requests.
            prompt_token_ids: u32 column of at least one id.
            boundaries: u32 column of the positions where messages end.
            sample: index of the sample within the prompt, from 0.

        Raises:
            FieldRejected: the prompt and the fields do not fit the model's context.
        """
        request = self._build(request_id, prompt_token_ids, boundaries, sample)
        # Everything else was already checked with a probe prompt.
        _raise_if(check_length(request, self._info))
        return request

    def output_stream(
        self,
        text: TextModel,
        prompt_token_ids: bytes,
        parser: OutputParser | None = None,
        *,
        is_located: bool = False,
    ) -> OutputStream:
        """Returns the stream that turns the output tokens of one sample into text and pieces.

        Args:
            text: the model's text.
            prompt_token_ids: u32 column.
            parser: finds reasoning and tool calls in the text.
            is_located: whether deltas have the offset of each token in the text.
        """
        fields = self._fields
        output = text.output(
            stops=self._stop_set,
            include_stop_str_in_output=fields.include_stop_str_in_output,
            stop_token_ids=self.stop_token_ids,
            min_tokens=fields.min_tokens,
            skip_special_tokens=fields.skip_special_tokens,
            shown_tokens=() if parser is None else parser.markers,
            spaces_between_special_tokens=fields.spaces_between_special_tokens,
            context_ids=unpack_ids(prompt_token_ids[-_CONTEXT_BYTES:]),
            is_located=is_located,
        )
        return OutputStream(output, parser, eos_token_ids=self.eos_token_ids)

    def _set_deadline(self, timeout_s: float | None) -> None:
        own_ms = self._fields.deadline_ms
        own_s = None if own_ms is None else own_ms / 1000
        is_own = own_s is not None and (timeout_s is None or own_s <= timeout_s)
        self.limit_s = None if is_own else timeout_s
        seconds = own_s if is_own else timeout_s
        self._deadline = None if seconds is None else self._arrival + seconds

    def _set_stops(self, eos_token_ids: Collection[int]) -> None:
        # int: ids also come from numpy arrays.
        explicit = dict.fromkeys(int(token_id) for token_id in self._fields.stop_token_ids)
        known_to_engine = frozenset(self._info.eos_token_ids)
        eos = frozenset[int]()
        if not self._fields.ignore_eos:
            eos = known_to_engine.union(eos_token_ids)
        self.eos_token_ids = eos.difference(explicit)
        self.stop_token_ids = eos.union(explicit)
        self._stop_ids = tuple(dict.fromkeys([*explicit, *sorted(eos - known_to_engine)]))

    def _lower_logprobs(self) -> tuple[LogprobOptions | None, PromptLogprobOptions | None]:
        fields, output, prompt = self._fields, None, None
        if fields.logprobs is not None:
            output = LogprobOptions(
                num_top=fields.logprobs,
                token_ids=pack_ids(fields.logprob_token_ids),
                mode=fields.logprobs_mode,
            )
        if fields.prompt_logprobs is not None:
            prompt = PromptLogprobOptions(num_top=fields.prompt_logprobs)
        return output, prompt

    def _build(
        self, request_id: str, prompt_token_ids: bytes, boundaries: bytes = b"", sample: int = 0
    ) -> GenerateRequest:
        fields = self._fields
        return GenerateRequest(
            request_id=request_id,
            prompt_token_ids=prompt_token_ids,
            stop=StopRules(
                max_tokens=self._max_tokens(num_ids(prompt_token_ids)),
                min_tokens=fields.min_tokens,
                stop_token_ids=self._stop_ids,
                ignore_eos=fields.ignore_eos,
            ),
            sampling=self._sampling(sample),
            logprobs=self._logprobs,
            prompt_logprobs=self._prompt_logprobs,
            grammar=self.grammar,
            cache=CacheOptions(salt=(fields.cache_salt or "").encode(), boundaries=boundaries),
            priority=fields.priority,
            tenant=fields.tenant,
            session_id=fields.session_id,
            deadline=self._deadline,
            trace_parent=self._trace_parent,
            arrival=self._arrival,
        )

    def _max_tokens(self, num_prompt_tokens: int) -> int:
        """Returns the maximum number of output tokens, as requested or as the context allows."""
        most, wanted = self._info.limits.max_model_len, self._fields.max_tokens
        room = max(1, most - num_prompt_tokens)
        if room < self._fields.min_tokens <= (wanted or 0) and num_prompt_tokens < most:
            reason = (
                f"must be at most {room}: the prompt leaves that much room in the model's context "
                f"of {most} tokens"
            )
            raise FieldRejected(_invalid("stop.min_tokens", reason))
        if wanted is None:
            wanted = self._default_max_tokens or room
        # Scoring a prompt ends with logits, and the engine always samples a token from them.
        return max(1, min(wanted, room))

    def _sampling(self, sample: int) -> Sampling:
        is_first = sample == 0 or self._fields.seed is None
        return self._first_sampling if is_first else self._lower_sampling(sample)

    def _lower_sampling(self, sample: int) -> Sampling:
        fields = self._fields
        return self._defaults.sampling(
            temperature=fields.temperature,
            top_k=fields.top_k,
            top_p=fields.top_p,
            min_p=fields.min_p,
            repetition_penalty=fields.repetition_penalty,
            presence_penalty=fields.presence_penalty,
            frequency_penalty=fields.frequency_penalty,
            seed=fields.seed,
            sample=sample,
            logit_bias=fields.logit_bias,
            allowed_token_ids=fields.allowed_token_ids,
            bad_words=self._bad_words,
        )

    def _check_counts(self, top_logprobs_field: str) -> None:
        most, fields = self._info.limits.max_logprobs, self._fields
        for feature, name, count in (
            ("logprobs", top_logprobs_field, fields.logprobs),
            ("prompt_logprobs", "prompt_logprobs", fields.prompt_logprobs),
        ):
            if count is not None and count > most and feature in self._info.honoured:
                raise FieldRejected(_invalid(name, f"must be at most {most}"))
        # With max_tokens 0 the engine is asked for one token, so its own check would pass.
        if fields.max_tokens == 0 and fields.min_tokens > 0:
            raise FieldRejected(_invalid("stop.min_tokens", "must be between 0 and max_tokens"))

    def _check_ids(self) -> None:
        size = self._info.vocab_size
        for name, ids in (
            ("logit_bias", self._fields.logit_bias),
            ("allowed_token_ids", self._fields.allowed_token_ids or ()),
            ("logprob_token_ids", self._fields.logprob_token_ids),
        ):
            if any(not 0 <= token_id < size for token_id in ids):
                message = f"{name}: token ids must be below {size}"
                raise FieldRejected(Rejected(kind="invalid", field=name, message=message))


def _raise_if(rejected: Rejected | None) -> None:
    if rejected is not None:
        raise FieldRejected(rejected)


def _invalid(name: str, reason: str) -> Rejected:
    return Rejected(kind="invalid", field=name, message=f"{name} {reason}")
