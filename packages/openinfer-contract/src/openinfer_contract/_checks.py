"""Checks of a request: the engine honours all of it, or rejects it with the field at fault.

The front end runs the checks before it tokenises, and the engine runs them again at intake, so both
reject with the same message.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache

from openinfer_contract._columns import num_ids, pack_ids, unpack_ids
from openinfer_contract._events import Rejected
from openinfer_contract._info import EngineInfo
from openinfer_contract._request import GenerateRequest, Sampling

Uses = Callable[[GenerateRequest], bool]

FEATURES: Mapping[str, Uses] = {
    "sampling.seed": lambda r: r.sampling.seed is not None,
    "sampling.repetition_penalty": lambda r: r.sampling.repetition_penalty != 1.0,
    "sampling.presence_penalty": lambda r: r.sampling.presence_penalty != 0.0,
    "sampling.frequency_penalty": lambda r: r.sampling.frequency_penalty != 0.0,
    "sampling.logit_bias": lambda r: bool(r.sampling.logit_bias),
    "sampling.allowed_token_ids": lambda r: r.sampling.allowed_token_ids is not None,
    "sampling.bad_words": lambda r: bool(r.sampling.bad_words),
    "stop.min_tokens": lambda r: r.stop.min_tokens > 0,
    "logprobs": lambda r: r.logprobs is not None,
    "logprobs.token_ids": lambda r: r.logprobs is not None and bool(r.logprobs.token_ids),
    "logprobs.mode": lambda r: r.logprobs is not None and r.logprobs.mode == "processed",
    "prompt_logprobs": lambda r: r.prompt_logprobs is not None,
    "grammar": lambda r: r.grammar is not None,
    "adapter": lambda r: r.adapter is not None,
    "cache.hint": lambda r: bool(r.cache.hint),
    "deadline": lambda r: r.deadline is not None,
    "dp_rank": lambda r: r.dp_rank is not None,
    "speculate": lambda r: r.speculate is True,
    "want": lambda r: bool(r.want),
    "kv_transfer": lambda r: r.kv_transfer is not None,
}
"""Optional features, each with the requests that use it. `EngineInfo.honoured` lists those that an
engine supports. Every engine supports everything else in a request."""

_FLOAT_BOUNDS: tuple[tuple[str, float, float, bool], ...] = (
    ("temperature", 0.0, 100.0, True),
    ("top_p", 0.0, 1.0, False),
    ("min_p", 0.0, 1.0, True),
    # A penalty below 0.01 makes logits infinite, which would be reported as a defect of the model.
    ("repetition_penalty", 0.01, 100.0, True),
    ("presence_penalty", -2.0, 2.0, True),
    ("frequency_penalty", -2.0, 2.0, True),
)
_MAX_SEED = 2**64 - 1
_MAX_BIAS = 100.0


def banning_fields(request: GenerateRequest) -> tuple[str, ...]:
    """Returns the dotted fields that exclude tokens, the most likely culprit first."""
    sampling = request.sampling
    used = {
        "grammar": request.grammar is not None,
        "sampling.allowed_token_ids": sampling.allowed_token_ids is not None,
        "sampling.bad_words": bool(sampling.bad_words),
        "stop.min_tokens": request.stop.min_tokens > 0,
    }
    return tuple(field for field, is_used in used.items() if is_used)


def no_token_left_message(fields: Iterable[str]) -> str:
    """Returns the message for a request whose `banning_fields` together exclude every token."""
    names = " and ".join(field.rpartition(".")[2] for field in fields)
    return f"no token is left to draw: every one is ruled out by {names}"


def check_request(request: GenerateRequest, info: EngineInfo) -> Rejected | None:
    """Returns why the engine cannot honour the request, or None if it can.

    It takes microseconds, because it does not look at single token ids.
    """
    return next(_problems(request, info), None)


def check_length(request: GenerateRequest, info: EngineInfo) -> Rejected | None:
    """Returns why the request's lengths do not fit, or None. Part of `check_request`."""
    return next(_length_problems(request, info), None)


def check_sampling(sampling: Sampling) -> Rejected | None:
    """Returns why no engine could honour these sampling parameters, or None if one could."""
    return next(_sampling_problems(sampling), None)


def _problems(request: GenerateRequest, info: EngineInfo) -> Iterator[Rejected]:
    if not request.request_id:
        yield _invalid("request_id", "must not be empty")
    if not request.prompt_token_ids or len(request.prompt_token_ids) % 4:
        yield _invalid("prompt_token_ids", "must be a u32 column of at least one id")
    yield from _sampling_problems(request.sampling)
    yield from _bad_word_problems(request.sampling, info)
    yield from _stop_problems(request, info)
    yield from _ruled_out_problems(request, info)
    yield from _length_problems(request, info)
    yield from _logprob_problems(request, info)
    if len(request.cache.boundaries) % 4:
        yield _invalid("cache.boundaries", "must be a u32 column")
    if request.cache.hint not in ("", "pin", "demote"):
        yield _invalid("cache.hint", "must be empty, pin or demote")
    if request.deadline is not None and math.isnan(request.deadline):
        yield _invalid("deadline", "must be a number of seconds")
    if request.adapter is not None and not request.adapter.uid and "adapter" in info.honoured:
        yield _invalid("adapter", "must have a uid: its cached blocks would be the base model's")
    for feature, uses in _unsupported_features(info.honoured):
        if uses(request):
            message = f"{feature} is not supported by this engine ({info.model_line})"
            yield Rejected(kind="unsupported", field=feature, message=message)


@lru_cache(maxsize=16)
def _unsupported_features(honoured: frozenset[str]) -> tuple[tuple[str, Uses], ...]:
    """Returns the items of `FEATURES` that are not in `honoured`."""
    return tuple((name, uses) for name, uses in FEATURES.items() if name not in honoured)


def _sampling_problems(sampling: Sampling) -> Iterator[Rejected]:
    for name, low, high, has_low in _FLOAT_BOUNDS:
        value = getattr(sampling, name)
        if not (low < value <= high or (value == low and has_low)):  # NaN is neither
            bracket = "[" if has_low else "("
            yield _invalid(f"sampling.{name}", f"must be in {bracket}{low:g}, {high:g}]")
    if sampling.top_k is not None and sampling.top_k < 1:
        yield _invalid("sampling.top_k", "must be at least 1")
    if sampling.seed is not None and not 0 <= sampling.seed <= _MAX_SEED:
        yield _invalid("sampling.seed", "must be an unsigned 64-bit integer")
    if any(not abs(bias) <= _MAX_BIAS for _, bias in sampling.logit_bias):
        yield _invalid("sampling.logit_bias", f"must be in [-{_MAX_BIAS:g}, {_MAX_BIAS:g}]")
    if sampling.allowed_token_ids == b"":
        yield _invalid("sampling.allowed_token_ids", "must name at least one id")
    if b"" in sampling.bad_words:
        yield _invalid("sampling.bad_words", "must not hold an empty word")


def _bad_word_problems(sampling: Sampling, info: EngineInfo) -> Iterator[Rejected]:
    limits = info.limits
    if len(sampling.bad_words) > limits.max_bad_words:
        yield _invalid(
            "sampling.bad_words", f"must hold at most {limits.max_bad_words} sequences of ids"
        )
    if any(num_ids(word) > limits.max_bad_word_ids for word in sampling.bad_words):
        yield _invalid(
            "sampling.bad_words", f"must hold at most {limits.max_bad_word_ids} ids in one sequence"
        )


def _stop_problems(request: GenerateRequest, info: EngineInfo) -> Iterator[Rejected]:
    stop, most = request.stop, info.limits.max_stop_token_ids
    if stop.max_tokens < 1:
        yield _invalid("stop.max_tokens", "must be at least 1")
    if len(stop.stop_token_ids) > most:
        yield _invalid("stop.stop_token_ids", f"must hold at most {most} ids")
    if stop.ignore_eos and request.grammar is not None:
        yield _invalid("stop.ignore_eos", "cannot be combined with a grammar, which has an end")
    if any(not 0 <= i < info.vocab_size for i in stop.stop_token_ids):
        yield _invalid("stop.stop_token_ids", f"must hold ids below {info.vocab_size}")


def _logprob_problems(request: GenerateRequest, info: EngineInfo) -> Iterator[Rejected]:
    """Yields a problem for each invalid logprob option, if the engine supports the option."""
    logprobs, prompt_logprobs = request.logprobs, request.prompt_logprobs
    for name, options in (("logprobs", logprobs), ("prompt_logprobs", prompt_logprobs)):
        if options is None or name not in info.honoured:
            continue
        if not 0 <= options.num_top <= info.limits.max_logprobs:
            yield _invalid(name, f"num_top must be between 0 and {info.limits.max_logprobs}")
    scores_ids = {"logprobs", "logprobs.token_ids"} <= info.honoured
    if logprobs and scores_ids and not _is_column(logprobs.token_ids, info.vocab_size):
        yield _invalid("logprobs", f"token_ids must be a u32 column of ids below {info.vocab_size}")
    if prompt_logprobs and prompt_logprobs.start < 0 and "prompt_logprobs" in info.honoured:
        yield _invalid("prompt_logprobs", "start must not be negative")


def _ruled_out_problems(request: GenerateRequest, info: EngineInfo) -> Iterator[Rejected]:
    """Yields a problem if other fields exclude every id of `allowed_token_ids`."""
    allowed, stop = request.sampling.allowed_token_ids, request.stop
    ruled_out = {word for word in request.sampling.bad_words if num_ids(word) == 1}
    if not allowed or len(allowed) % 4 or not (ruled_out or stop.min_tokens > 0):
        return
    if stop.min_tokens > request.num_output_prefix:
        ends = (*stop.stop_token_ids, *(() if stop.ignore_eos else info.eos_token_ids))
        ruled_out.update(pack_ids((i,)) for i in ends if 0 <= i < info.vocab_size)
    if all(allowed[i : i + 4] in ruled_out for i in range(0, len(allowed), 4)):
        yield _invalid(
            "sampling.allowed_token_ids",
            "holds only ids that bad_words or min_tokens (which excludes stop ids) rule out",
        )


def _length_problems(request: GenerateRequest, info: EngineInfo) -> Iterator[Rejected]:
    prefix, prompt = request.num_output_prefix, request.num_prompt_tokens
    if not 0 <= request.stop.min_tokens <= request.stop.max_tokens:
        yield _invalid("stop.min_tokens", "must be between 0 and max_tokens")
    if not 0 <= prefix < prompt:
        yield _invalid("num_output_prefix", "must leave at least one prompt token")
    if prefix >= request.stop.max_tokens:
        yield _invalid("num_output_prefix", "must be below max_tokens")
    most = info.limits.max_model_len
    if prompt >= most:
        yield Rejected(
            kind="too_long",
            field="prompt_token_ids",
            # Agents recognize "maximum context length" and then shorten their conversation.
            message=f"the prompt is too long: {prompt} tokens, of at most {most - 1}; "
            f"this model's maximum context length is {most} tokens",
        )


def _is_column(token_ids: bytes, vocab_size: int) -> bool:
    return len(token_ids) % 4 == 0 and all(i < vocab_size for i in unpack_ids(token_ids))


def _invalid(field: str, message: str) -> Rejected:
    return Rejected(kind="invalid", field=field, message=f"{field} {message}")
