"""Rows with a grammar in the same step as rows without one, on a CPU and on a GPU.

On a GPU: pytest -m gpu packages/openinfer-runtime/tests/test_grammar_rows.py
"""

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from openinfer_contract import Failed, Grammar, LogprobOptions, pack_ids
from openinfer_engine import assemble
from openinfer_testing.grammar import EOS_TOKEN_IDS, decode, encode, tokenizer_json

gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = {"device": "cuda", "gpu_memory_utilization": 0.5}
HELD = Grammar(kind="regex", text="((ab|c|d)abxab){12}")
CONTROLS = (
    {},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 1.3, "top_k": 12, "min_p": 0.01, "seed": 0},
    {"temperature": 2.0, "frequency_penalty": 0.6, "seed": 6},
)
"""The last grammar is sampled token by token; the others have forced tokens."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A tokenizer with fewer ids than the model: ids without a token must never be drawn."""
    path = tmp_path_factory.mktemp("grammar") / "tokenizer.json"
    path.write_bytes(tokenizer_json())
    return path


@pytest.fixture
def held_engine(engine, tokenizer):
    """An engine over a tiny checkpoint that honours grammars and the tokenizer's EOS ids."""
    runners = []

    def start(**options):
        runner = engine(dtype="float32", **options)
        executor = runner.executor
        executor._info = replace(executor.info, eos_token_ids=EOS_TOKEN_IDS)
        runner.loop = assemble(executor, runner.options, tokenizer=tokenizer)
        runners.append(runner)
        return runner

    yield start
    for runner in runners:
        runner.loop.close()


def mixed(ask, prompts, max_tokens=40):
    """Every prompt twice, with each kind of control: with a grammar and without."""
    requests = []
    for ids, controls in zip(prompts, CONTROLS, strict=True):
        free = ask(ids, max_tokens=max_tokens, **controls)
        stop = replace(free.stop, ignore_eos=False)
        held = replace(free, request_id=f"held-{free.request_id}", grammar=HELD, stop=stop)
        requests += [free, held]
    return requests


def outputs(runner, requests):
    return [output.token_ids for output in runner.run(requests)]


def check_held(token_ids):
    text = decode(token_ids)
    matched = 0
    while matched < len(text):
        unit = next((u for u in ("ab", "c", "d") if text.startswith(u, matched)), None)
        assert unit is not None, text
        whole = unit + "abxab"
        rest = text[matched : matched + len(whole)]
        assert whole.startswith(rest), text
        matched += len(rest)


@pytest.mark.parametrize("is_padded", [False, True], ids=["as it is", "padded"])
def test_rows_with_and_without_masks_in_one_step(held_engine, ask, prompts, tokenizer, is_padded):
    """Requests get the tokens that they get alone: a mask affects its own row on every path."""
    runner = held_engine()
    alone = [outputs(runner, [request])[0] for request in mixed(ask, prompts)]
    if is_padded:
        old = runner.loop
        runner.pad_steps(tokenizer)
        old.close()
    together = outputs(runner, mixed(ask, prompts))
    assert together == alone
    for token_ids in together[1::2]:
        check_held(token_ids)
    assert len({tuple(ids) for ids in together}) == len(together)


def ids_of(text):
    return pack_ids(encode(text))


@pytest.mark.parametrize(
    ("min_tokens", "sampling", "named"),
    [
        (6, {}, "grammar and min_tokens"),
        (0, {"allowed_token_ids": ids_of("xyz")}, "grammar and allowed_token_ids"),
        (
            0,
            {"allowed_token_ids": ids_of("ab"), "bad_words": tuple(map(ids_of, ("aa", "ab", "b")))},
            "grammar and allowed_token_ids and bad_words",
        ),
    ],
    ids=["min_tokens", "allowed", "bad words"],
)
@pytest.mark.parametrize("num_output_prefix", [0, 1])
@pytest.mark.parametrize("options", [{}, pytest.param(CUDA, marks=gpu)], ids=["cpu", "cuda"])
def test_fields_that_leave_a_grammar_no_token_fail_their_request_alone(
    held_engine, ask, prompts, options, min_tokens, sampling, named, num_output_prefix
):
    """The failure names the request, and the prefix cache stays."""
    runner = held_engine(**options)
    free = ask(prompts[3], max_tokens=20)
    ids = prompts[3] + list(encode("a"))[:num_output_prefix]
    failing = replace(
        ask(ids, max_tokens=9, **sampling),
        grammar=Grammar(kind="regex", text="(a|b){4}"),
        num_output_prefix=num_output_prefix,
    )
    stop = replace(
        failing.stop,
        min_tokens=min_tokens,
        ignore_eos=False,
        stop_token_ids=EOS_TOKEN_IDS,  # the sampler was made for the checkpoint's own
    )
    failed, other = runner.run([replace(failing, stop=stop), free])
    end = failed.event.end
    assert isinstance(end, Failed)
    assert (end.field, end.is_retryable) == ("grammar", False)
    assert end.message.endswith(f"ruled out by {named}")
    assert len(other.token_ids) == 20
    (again,) = runner.run([ask(prompts[3], max_tokens=2)])
    assert dict(again.event.end.cached)["device"] >= 32


def test_fields_that_leave_a_token_are_no_obstacle(held_engine, ask, prompts):
    sampling = {"bad_words": (ids_of("aa"), ids_of("q"))}
    request = replace(
        ask(prompts[0], max_tokens=9, **sampling), grammar=Grammar(kind="regex", text="(a|b|c){4}")
    )
    stop = replace(request.stop, min_tokens=2, ignore_eos=False)
    (output,) = held_engine().run([replace(request, stop=stop)])
    assert len(decode(output.token_ids[:-1])) == 4
    assert output.event.end.reason == "stop"


@pytest.mark.parametrize("eager", [False, True], ids=["graphs", "eager"])
@pytest.mark.parametrize("budget", [11, 512])
class TestOnADevice:
    pytestmark = gpu

    def test_rows_are_those_of_the_cpu(self, held_engine, ask, prompts, eager, budget):
        """Mixed rows with two steps in flight, over whole and chunked prompts."""
        expected = outputs(held_engine(device="cpu"), mixed(ask, prompts))
        options = {"enforce_eager": eager, "max_num_batched_tokens": budget}
        runner = held_engine(**CUDA, **options)
        assert outputs(runner, mixed(ask, prompts)) == expected
        few = held_engine(max_num_seqs=3, **CUDA, **options)
        assert outputs(few, mixed(ask, prompts)) == expected


class TestMasksOnADevice:
    pytestmark = gpu

    def test_logprobs_of_masked_rows_are_the_models(self, held_engine, ask, prompts):
        """Raw logprobs are those of the CPU: a mask changes the draw alone."""
        wish = LogprobOptions(num_top=3)

        def scored(runner):
            requests = [replace(r, logprobs=wish) for r in mixed(ask, prompts, max_tokens=12)]
            events = [output.event for output in runner.run(requests)]
            columns = [np.frombuffer(event.logprobs.sampled, "<f4") for event in events]
            return [event.token_ids for event in events], np.concatenate(columns)

        here, there = scored(held_engine(device="cpu")), scored(held_engine(**CUDA))
        assert here[0] == there[0]
        assert here[1] == pytest.approx(there[1], abs=1e-2)

    def test_masks_fill_and_go_up_while_the_forward_pass_runs(self, held_engine, ask, prompts):
        """A quarter of the rows has a grammar; the host does not wait for a busy device."""
        runner = held_engine(**CUDA)
        runner.run(mixed(ask, prompts))  # compiles
        executor, was_busy = runner.executor, []
        launch, sample = executor.launch, executor.sample

        def held_up(plan):
            torch.cuda._sleep(50_000_000)  # tens of milliseconds
            return launch(plan)

        def watched(ticket, masks):
            sample(ticket, masks)
            if masks:
                was_busy.append(not torch.cuda.current_stream().query())

        executor.launch, executor.sample = held_up, watched
        requests = mixed(ask, prompts * 1, max_tokens=8)
        quarter = [*requests[::2], *requests[1:2]]
        runner.run(quarter)
        assert was_busy
        assert all(was_busy)

    @pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
    def test_sampling_by_masks_never_waits(self, held_engine, ask, prompts):
        runner = held_engine(**CUDA)
        runner.run(mixed(ask, prompts))  # compiles
        sample = runner.executor.sample

        def watched(ticket, masks):
            try:
                torch.cuda.set_sync_debug_mode("error")
                sample(ticket, masks)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        runner.executor.sample = watched
        for token_ids in outputs(runner, mixed(ask, prompts))[1::2]:
            check_held(token_ids)
