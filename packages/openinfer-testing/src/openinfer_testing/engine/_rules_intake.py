"""Rules of the intake: a request is honoured whole or rejected with the reason."""

from collections.abc import Callable

from msgspec.structs import replace

from openinfer_contract import (
    Adapter,
    CacheOptions,
    Finished,
    GenerateRequest,
    Rejected,
    RejectionKind,
    Sampling,
    pack_ids,
)
from openinfer_testing.engine._harness import EngineNeeds, Session, request
from openinfer_testing.engine._rule import rule


async def _expect(
    one: Session, wrong: GenerateRequest, kind: RejectionKind, field: str
) -> Rejected:
    recorder = one.start(wrong)
    rejected = await recorder.rejected()
    assert (rejected.kind, rejected.field) == (kind, field), f"{rejected} instead of {kind} {field}"
    assert len(recorder.events) == 1, "a rejection is the only event of its stream"
    return rejected


@rule()
async def rejects_invalid(one: Session) -> None:
    """A value that makes no sense is rejected by the field's name."""
    good = request()
    for name, sampling in (
        ("top_p", Sampling(top_p=0.0)),
        ("temperature", Sampling(temperature=float("nan"))),
        ("top_k", Sampling(top_k=0)),
        ("seed", Sampling(seed=2**64)),
    ):
        await _expect(one, replace(good, sampling=sampling), "invalid", f"sampling.{name}")
    await _expect(one, replace(good, prompt_token_ids=b""), "invalid", "prompt_token_ids")
    await _expect(one, request(max_tokens=0), "invalid", "stop.max_tokens")
    await _expect(one, request(num_output_prefix=3), "invalid", "num_output_prefix")
    await _expect(one, replace(good, prompt_token_ids=b"\0" * 7), "invalid", "prompt_token_ids")
    await _expect(one, replace(good, deadline=float("nan")), "invalid", "deadline")
    cut = CacheOptions(boundaries=b"\0")
    await _expect(one, replace(good, cache=cut), "invalid", "cache.boundaries")


@rule()
async def rejects_unknown_ids(one: Session) -> None:
    """An id outside the vocabulary is rejected, wherever it stands; its position is named."""
    size = one.engine.info.vocab_size
    wrong = replace(request(), prompt_token_ids=pack_ids([1, 2, size, 3]))
    rejected = await _expect(one, wrong, "invalid", "prompt_token_ids")
    assert "position 2" in rejected.message, "the position of the wrong id is named"
    for wrong_id in (size, 2**40, -1):
        stop = request(stop_token_ids=(wrong_id,))
        await _expect(one, stop, "invalid", "stop.stop_token_ids")


@rule()
async def rejects_unsupported(one: Session) -> None:
    """What the engine does not honour is rejected by name, never dropped."""
    wants: tuple[tuple[str, Callable[[GenerateRequest], GenerateRequest]], ...] = (
        ("want", lambda r: replace(r, want=("hidden_states",))),
        ("adapter", lambda r: replace(r, adapter=Adapter("a", b"uid"))),
        ("dp_rank", lambda r: replace(r, dp_rank=1)),
        ("kv_transfer", lambda r: replace(r, kv_transfer=b"peer")),
    )
    for feature, change in wants:
        if feature not in one.engine.info.honoured:
            await _expect(one, change(request()), "unsupported", feature)


@rule()
async def rejects_too_long(one: Session) -> None:
    """A prompt that leaves no room is rejected; one that just fits is served to the limit."""
    most = one.engine.info.limits.max_model_len
    long = request([1 + i % 500 for i in range(most)])
    await _expect(one, long, "too_long", "prompt_token_ids")
    fits = one.start(request([1 + i % 500 for i in range(most - 2)], max_tokens=50))
    end = await fits.finished()
    assert (end.reason, end.num_output_tokens) == ("length", 2)


@rule(EngineNeeds(step_s=0.005))
async def rejects_duplicates(one: Session) -> None:
    """A live request keeps its id; the second is rejected and the first not touched."""
    first = one.start(request(request_id="same", max_tokens=60))
    await first.until_tokens()
    await _expect(one, request(request_id="same"), "duplicate", "request_id")
    assert (await first.finished()).num_output_tokens == 60
    assert len(first.tokens) == 60


@rule(EngineNeeds(step_s=0.01, max_num_seqs=2, max_queued_requests=4, is_expendable=True))
async def rejects_overload(one: Session) -> None:
    """Intake is bounded: what does not fit is rejected at once, the rest is served."""
    recorders = [one.start(request([i + 2], max_tokens=20)) for i in range(40)]
    ends = [await recorder.until_end() for recorder in recorders]
    rejected = [end for end in ends if isinstance(end, Rejected)]
    served = [end for end in ends if isinstance(end, Finished)]
    assert len(rejected) + len(served) == 40
    assert rejected, "forty requests fit no intake of four"
    assert len(served) >= 4, "what fits is served"
    for end in rejected:
        assert end.kind == "overloaded"
        assert end.retry_after_s is not None, "an overloaded engine says when to come back"
    await one.until_idle()


INTAKE_RULES = (
    rejects_invalid,
    rejects_unknown_ids,
    rejects_unsupported,
    rejects_too_long,
    rejects_duplicates,
    rejects_overload,
)
