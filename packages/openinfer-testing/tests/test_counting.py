import numpy as np
import pytest

from openinfer_contract import GenerateRequest, LogprobOptions, Sampling, StopRules, pack_ids
from openinfer_engine import LaunchSpec
from openinfer_scheduler import PlannedRow, RowStart, StepPlan
from openinfer_testing import CountingShape, ZeroCostExecutor, next_token, zero_cost_executor


def start(prompt: list[int], slot: int = 0, *, greedy: bool = True, seed: int = 3) -> RowStart:
    sampling = Sampling(temperature=0.0) if greedy else Sampling(seed=seed)
    return RowStart(
        slot=slot,
        request=GenerateRequest(
            request_id="r",
            prompt_token_ids=pack_ids(prompt),
            sampling=sampling,
            stop=StopRules(max_tokens=9),
            logprobs=LogprobOptions(num_top=2),
        ),
        token_ids=np.array(prompt, np.uint32),
        num_output_tokens=0,
        num_cached_tokens=0,
        block_ids=(np.array([], np.int32),),
        seed=seed,
    )


def row(tokens: list[int] | None, slot: int = 0, *, blocks: int = 0) -> PlannedRow:
    return PlannedRow(
        slot=slot,
        num_tokens=1 if tokens is None else len(tokens),
        token_ids=None if tokens is None else np.array(tokens, np.uint32),
        new_block_ids=(np.arange(blocks, dtype=np.int32),),
        is_sampled=True,
    )


def run(executor: ZeroCostExecutor, plan: StepPlan) -> list[int]:
    executor.sample(executor.launch(plan), {})
    return executor.wait(plan.step_id).token_ids.tolist()


def plan(step_id: int, *rows: PlannedRow, starts: tuple[RowStart, ...] = ()) -> StepPlan:
    return StepPlan(step_id=step_id, ends=(), starts=starts, rows=rows)


def test_it_counts() -> None:
    executor = ZeroCostExecutor()
    assert run(executor, plan(1, row([4, 5], blocks=1), starts=(start([4, 5]),))) == [6]
    assert run(executor, plan(2, row(None))) == [7]
    assert run(executor, plan(3, row(None))) == [8]


def test_draws_depend_on_seed_and_position() -> None:
    shape = CountingShape()
    assert next_token(5, 9, None, shape.vocab_size) == 6
    draws = [next_token(0, position, 7, 1000) for position in range(200)]
    assert draws == [next_token(0, position, 7, 1000) for position in range(200)]
    assert set(draws) == {1, 2, 3}
    assert draws != [next_token(0, position, 8, 1000) for position in range(200)]


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (plan(1, row([1] * 17, blocks=1), starts=(start([1] * 17),)), "without the blocks"),
        (plan(1, starts=(start([1], 9),)), "no slot 9"),
        (plan(1, starts=(start([1]), start([1]))), "slot 0"),
        (plan(1, row([1] * 300, blocks=30), starts=(start([1] * 300),)), "budget"),
    ],
)
def test_insane_plans_are_noticed(bad: StepPlan, what: str) -> None:
    with pytest.raises(AssertionError, match=what):
        ZeroCostExecutor().launch(bad)


def test_the_depth_is_held() -> None:
    executor = ZeroCostExecutor(CountingShape(depth=1))
    executor.launch(plan(1, row([1], blocks=1), starts=(start([1]),)))
    with pytest.raises(AssertionError, match="more steps in flight"):
        executor.launch(plan(2, row(None)))


def test_an_unsampled_step_is_not_waited_for() -> None:
    executor = ZeroCostExecutor()
    executor.launch(plan(1, row([1], blocks=1), starts=(start([1]),)))
    with pytest.raises(AssertionError, match="before it was sampled"):
        executor.wait(1)


def test_logprobs_come_along() -> None:
    executor = ZeroCostExecutor()
    executor.sample(executor.launch(plan(1, row([1], blocks=1), starts=(start([1]),))), {})
    logprobs = executor.wait(1).logprobs[0]
    assert (len(logprobs.sampled), logprobs.num_top, len(logprobs.top_ids)) == (4, 2, 8)


def test_the_factory_reads_its_options() -> None:
    spec = LaunchSpec(model_path="", model_line="x", line_options={"max_num_seqs": 9})
    assert zero_cost_executor(spec).info.max_num_seqs == 9
