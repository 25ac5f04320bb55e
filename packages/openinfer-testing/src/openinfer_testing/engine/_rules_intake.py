"""Rules of the intake: a request is honoured completely, or rejected with the reason."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from openinfer_contract import (
    FEATURES,
    Adapter,
    CacheOptions,
    Finished,
    GenerateRequest,
    Grammar,
    LogprobOptions,
    PromptLogprobOptions,
    Rejected,
    RejectionKind,
    Sampling,
    pack_ids,
)
from openinfer_testing.engine._harness import EngineNeeds, Session, fresh_prompt, request
from openinfer_testing.engine._rule import rule


async def _expect(
    session: Session, wrong: GenerateRequest, kind: RejectionKind, field: str
) -> Rejected:
    recorder = session.start(wrong)
    rejected = await recorder.rejected()
    assert (rejected.kind, rejected.field) == (kind, field), f"{rejected} instead of {kind} {field}"
    assert len(recorder.events) == 1, "a rejection is the only event of its stream"
    return rejected


def _sampled(**values: Any) -> Callable[[GenerateRequest], GenerateRequest]:
    return lambda r: replace(r, sampling=replace(r.sampling, **values))


def _logprobs(**values: Any) -> Callable[[GenerateRequest], GenerateRequest]:
    return lambda r: replace(r, logprobs=LogprobOptions(**values))


_FEATURE_REQUESTS: Mapping[str, Callable[[GenerateRequest], GenerateRequest]] = {
    "sampling.seed": _sampled(seed=1),
    "sampling.repetition_penalty": _sampled(repetition_penalty=1.1),
    "sampling.presence_penalty": _sampled(presence_penalty=0.5),
    "sampling.frequency_penalty": _sampled(frequency_penalty=0.5),
    "sampling.logit_bias": _sampled(logit_bias=((1, 1.0),)),
    "sampling.allowed_token_ids": _sampled(allowed_token_ids=pack_ids([1])),
    "sampling.bad_words": _sampled(bad_words=(pack_ids([1]),)),
    "stop.min_tokens": lambda r: replace(r, stop=replace(r.stop, min_tokens=1)),
    "logprobs": _logprobs(),
    "logprobs.token_ids": _logprobs(token_ids=pack_ids([1])),
    "logprobs.mode": _logprobs(mode="processed"),
    "prompt_logprobs": lambda r: replace(r, prompt_logprobs=PromptLogprobOptions()),
    "grammar": lambda r: replace(
        r, grammar=Grammar(kind="json_object"), stop=replace(r.stop, ignore_eos=False)
    ),
    "adapter": lambda r: replace(r, adapter=Adapter("a", b"uid")),
    "cache.hint": lambda r: replace(r, cache=CacheOptions(hint="pin")),
    "deadline": lambda r: replace(r, deadline=time.monotonic() + 60),
    "dp_rank": lambda r: replace(r, dp_rank=1),
    "speculate": lambda r: replace(r, speculate=True),
    "want": lambda r: replace(r, want=("hidden_states",)),
    "kv_transfer": lambda r: replace(r, kv_transfer=b"peer"),
}
"""A request that uses the feature, for each optional feature of the contract."""


@rule()
async def rejects_invalid(session: Session) -> None:
    """A request with an invalid value must be rejected as `invalid`, with the name of its field."""
    good = request()
    for name, sampling in (
        ("top_p", Sampling(top_p=0.0)),
        ("temperature", Sampling(temperature=float("nan"))),
        ("top_k", Sampling(top_k=0)),
        ("seed", Sampling(seed=2**64)),
    ):
        await _expect(session, replace(good, sampling=sampling), "invalid", f"sampling.{name}")
    await _expect(session, replace(good, prompt_token_ids=b""), "invalid", "prompt_token_ids")
    await _expect(session, request(max_tokens=0), "invalid", "stop.max_tokens")
    await _expect(session, request(num_output_prefix=3), "invalid", "num_output_prefix")
    await _expect(session, replace(good, prompt_token_ids=b"\0" * 7), "invalid", "prompt_token_ids")
    await _expect(session, replace(good, deadline=float("nan")), "invalid", "deadline")
    cut = CacheOptions(boundaries=b"\0")
    await _expect(session, replace(good, cache=cut), "invalid", "cache.boundaries")


@rule()
async def rejects_unknown_ids(session: Session) -> None:
    """Ids outside the vocabulary must be rejected in prompts and stop tokens.

    For prompts the message names the position.
    """
    size = session.engine.info.vocab_size
    wrong = replace(request(), prompt_token_ids=pack_ids([1, 2, size, 3]))
    rejected = await _expect(session, wrong, "invalid", "prompt_token_ids")
    assert "position 2" in rejected.message, "the message must name the position of the invalid id"
    for wrong_id in (size, 2**40, -1):
        stop = request(stop_token_ids=(wrong_id,))
        await _expect(session, stop, "invalid", "stop.stop_token_ids")


@rule()
async def rejects_unsupported(session: Session) -> None:
    """A field that `info.honoured` does not list must be rejected as `unsupported`, not ignored."""
    honoured = session.engine.info.honoured
    missing = {name: uses for name, uses in FEATURES.items() if name not in honoured}
    for feature in missing:
        using = _FEATURE_REQUESTS[feature](request())
        # A request may use two missing features: `logprobs.mode` also uses `logprobs`.
        field = next(name for name, uses in missing.items() if uses(using))
        await _expect(session, using, "unsupported", field)


@rule()
async def rejects_too_long(session: Session) -> None:
    """A prompt without room for one output token must be rejected.

    A prompt that fits must be served.
    """
    most = session.engine.info.limits.max_model_len
    long = request([1 + i % 500 for i in range(most)])
    await _expect(session, long, "too_long", "prompt_token_ids")
    fits = session.start(request([1 + i % 500 for i in range(most - 2)], max_tokens=50))
    end = await fits.finished()
    assert (end.reason, end.num_output_tokens) == ("length", 2)


@rule(EngineNeeds(step_s=0.005))
async def rejects_duplicates(session: Session) -> None:
    """A second request with the id of a live one must be rejected.

    The first one must finish normally.
    """
    first = session.start(request(request_id="same", max_tokens=60))
    await first.until_tokens()
    await _expect(session, request(request_id="same"), "duplicate", "request_id")
    assert (await first.finished()).num_output_tokens == 60
    assert len(first.tokens) == 60


@rule(EngineNeeds(step_s=0.01, max_num_seqs=2, max_queued_requests=4, is_expendable=True))
async def rejects_overload(session: Session) -> None:
    """Requests beyond the queue's limit must be rejected as `overloaded` at once.

    The rejection carries a retry time. All other requests are served.
    """
    recorders = [session.start(request([i + 2], max_tokens=20)) for i in range(40)]
    ends = [await recorder.until_end() for recorder in recorders]
    rejected = [end for end in ends if isinstance(end, Rejected)]
    served = [end for end in ends if isinstance(end, Finished)]
    assert len(rejected) + len(served) == 40
    assert rejected, "40 requests must not fit a queue of 4"
    assert len(served) >= 4, "requests that fit the queue must be served"
    for end in rejected:
        assert end.kind == "overloaded"
        assert end.retry_after_s is not None, "an overloaded rejection must carry retry_after_s"
    await session.until_idle()


@rule(EngineNeeds(step_s=0.005, max_num_seqs=1, max_queued_tokens=100))
async def rejects_overload_of_tokens(session: Session) -> None:
    """Queued prompts are bounded in tokens, too.

    A prompt of any length may wait if it is the only one.
    """
    running = session.start(request(max_tokens=60))
    await running.until_tokens()
    longest = session.start(request(fresh_prompt(300)))
    refused = await session.start(request([9])).rejected()
    assert refused.kind == "overloaded"
    assert refused.retry_after_s is not None, "an overloaded rejection must carry retry_after_s"
    await longest.finished()
    running = session.start(request(max_tokens=60))
    await running.until_tokens()
    waiting = [session.start(request(fresh_prompt(60))), session.start(request(fresh_prompt(60)))]
    assert (await waiting[1].rejected()).kind == "overloaded"
    short = session.start(request([9]))
    for recorder in (running, waiting[0], short):
        await recorder.finished()


INTAKE_RULES = (
    rejects_invalid,
    rejects_unknown_ids,
    rejects_unsupported,
    rejects_too_long,
    rejects_duplicates,
    rejects_overload,
    rejects_overload_of_tokens,
)
