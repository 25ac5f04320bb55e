"""A loop of scheduler and modelled executor that tests step by hand."""

import random
from collections import deque

import pytest

from openinfer_contract import (
    Failed,
    Finished,
    GenerateRequest,
    Sampling,
    StopRules,
    StreamState,
    pack_ids,
    unpack_ids,
)
from openinfer_kv_cache import CacheGroup, KVCache, Plane, plan_slabs
from openinfer_scheduler import (
    Scheduler,
    SchedulerConfig,
    max_unsettled_tokens,
)
from openinfer_testing.content import EOS, ContentExecutor, HostilePolicy, alone


class Loop:
    """Scheduler and executor, stepped by hand. Checks that every stream keeps the contract."""

    def __init__(
        self,
        *,
        num_blocks=64,
        tokens_per_block=4,
        policy=None,
        rng=None,
        fail_step=0.0,
        fail_row=0.0,
        force=0.0,
        has_prefix_cache=True,
        groups=None,
        num_slabs=None,
        closing=None,
        **options,
    ):
        settings = {
            "max_model_len": 64,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 16,
            "depth": 2,
            "eos_token_ids": (EOS,),
            "seed": 7,
        } | options
        self.config = SchedulerConfig(**settings)
        if groups is None:
            planes = (Plane(name="kv", bytes_per_token=8),)
            groups = (CacheGroup(name="full", tokens_per_block=tokens_per_block, planes=planes),)
        if num_slabs is None:
            room = {"num_blocks": num_blocks}
        else:
            room = {"num_slabs": num_slabs}
            num_blocks = num_slabs * plan_slabs(groups).blocks_per_slab[0]
        self.cache = KVCache(
            groups,
            has_prefix_cache=has_prefix_cache,
            keeps_token_ids=True,
            max_unsettled_tokens=max_unsettled_tokens(self.config, groups),
            **room,
        )
        self.scheduler = Scheduler(self.config, self.cache, policy, closing=closing)
        self.executor = ContentExecutor(
            self.config,
            groups,
            num_blocks=num_blocks,
            rng=rng,
            fail_step=fail_step,
            fail_row=fail_row,
        )
        self.policy = policy
        self.num_faults = 0
        """Plans in which a hostile policy was at fault."""
        self.now = 100.0
        self.rng = rng or random.Random(0)
        self.force_chance = force
        self.num_forced = 0
        self.num_added = 0
        self.in_flight = deque()
        self.requests = {}
        self.streams = {}
        self.events = {}
        self.output = {}
        self.ends = {}

    def add(self, prompt, *, max_tokens=8, request_id=None, **fields):
        """Queues a request; returns its id or the rejection."""
        request_id = request_id or f"r{self.num_added}"
        stop = StopRules(
            max_tokens=max_tokens,
            min_tokens=fields.pop("min_tokens", 0),
            stop_token_ids=fields.pop("stop_token_ids", ()),
            ignore_eos=fields.pop("ignore_eos", False),
        )
        sampling = Sampling(seed=fields.pop("seed", None), **fields.pop("sampling", {}))
        is_loading = fields.pop("is_loading", False)
        request = GenerateRequest(
            request_id=request_id,
            prompt_token_ids=pack_ids(prompt),
            stop=stop,
            sampling=sampling,
            **fields,
        )
        rejected = self.scheduler.add(request, self.now, is_loading=is_loading)
        if rejected is not None:
            return rejected
        self.num_added += 1
        self.requests[request_id] = request
        self.streams[request_id] = StreamState(request_id)
        self.events[request_id] = []
        self.output[request_id] = []
        return request_id

    def take(self, effects):
        """Delivers effects to the streams."""
        assert len({request_id for request_id, _ in effects}) == len(effects)
        for request_id, event in effects:
            self.streams[request_id].advance(event)
            self.events[request_id].append(event)
            self.output[request_id] += unpack_ids(event.token_ids)
            if event.end is not None:
                self.ends[request_id] = event.end
        return effects

    def plan(self):
        """Plans a step and launches it; raises a policy's error unless the policy is hostile."""
        self.now += 0.001
        plan = self.scheduler.plan(self.now)
        if plan is not None:
            self.executor.launch(plan)
            self.in_flight.append(plan.step_id)
            for row in plan.rows:
                assert self.executor.slots[row.slot] not in self.ends, "an ended request is planned"
        error = self.scheduler.take_policy_error()
        if error is not None:
            if not isinstance(self.policy, HostilePolicy):
                raise error
            self.num_faults += 1
            # The tests keep asking a hostile policy, which an engine would not do.
            self.scheduler._policy.__init__(self.policy)
        return plan

    def complete(self):
        """Waits for the oldest step in flight and applies or fails it."""
        self.now += 0.001
        step_id = self.in_flight.popleft()
        result = self.executor.wait(step_id)
        if result is None:
            return self.take(self.scheduler.fail(step_id, "the step failed", self.now))
        effects = self.take(self.scheduler.apply(result, self.now))
        for request_id, event in effects:
            if event.token_ids and event.end is None and self.rng.random() < self.force_chance:
                self.force(request_id, self.rng.randrange(1, 6))
        return effects

    def force(self, request_id, num_tokens):
        """Forces the tokens that a request would sample next; only requests with a grammar."""
        request = self.requests[request_id]
        if request.grammar is None:
            return []
        seed = self.executor.seeds[request_id]
        tokens, _ = alone(request, seed, self.config.max_model_len)
        begin = len(self.output[request_id])
        forced = tokens[begin : begin + num_tokens]
        effects = self.scheduler.force(request_id, pack_ids(forced), self.now)
        self.num_forced += sum(event.num_tokens for _, event in effects)
        return self.take(effects)

    def loaded(self, *request_ids):
        return self.take(self.scheduler.loaded(request_ids, self.now))

    def abort(self, *request_ids):
        return self.take(self.scheduler.abort(request_ids, self.now))

    def step(self):
        """Fills the pipeline with `depth` plans and completes the oldest, as an engine does."""
        while self.plan() is not None:
            pass
        if self.in_flight:
            self.complete()

    def run(self, max_steps=1500):
        """Steps until no work remains, then checks that nothing is held."""
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                break
            self.step()
        assert not self.scheduler.has_work, f"still at work: {self.scheduler.load()}"
        self.check_idle()
        self.check_streams()

    def check_idle(self):
        self.cache.assert_idle()
        assert self.scheduler.is_idle
        assert self.scheduler.load().is_idle
        assert not self.executor.slots

    def check_streams(self):
        """Checks that every request ended with the tokens that a run of it alone gives."""
        for request_id, request in self.requests.items():
            assert self.streams[request_id].is_ended
            seed = self.executor.seeds.get(request_id)
            tokens, reason = [], ""
            if seed is not None:
                tokens, reason = alone(request, seed, self.config.max_model_len)
            end, output = self.ends[request_id], self.output[request_id]
            if isinstance(end, Failed) or end.reason == "abort":
                assert output == tokens[: len(output)]
                continue
            assert isinstance(end, Finished)
            assert (output, end.reason) == (tokens, reason), request_id
            assert end.num_output_tokens == request.num_output_prefix + len(tokens)
            assert end.num_prompt_tokens == request.num_prompt_tokens
            if reason == "stop":
                assert end.stop_token_id == tokens[-1]


def crowd(luck, policy=lambda _: None, **fields):
    """Runs 30 requests at once in a pool that has room for two.

    Args:
        luck: seed of all random choices, including those of policy and executor.
        policy: makes a policy from the random number generator.
        fields: fields of every request; `force` goes to the loop.
    """
    rng = random.Random(luck)
    subject = Loop(
        policy=policy(rng),
        rng=rng,
        force=fields.pop("force", 0.0),
        num_blocks=10,
        tokens_per_block=2,
        max_model_len=20,
        max_num_seqs=6,
        max_num_batched_tokens=rng.choice((6, 12, 30)),
        depth=rng.choice((1, 2, 3)),
    )
    for _ in range(30):
        prompt = [rng.randrange(3) for _ in range(rng.randrange(1, 8))]
        options = {"ignore_eos": rng.random() < 0.5} | fields
        subject.add(prompt, max_tokens=rng.randrange(1, 12), **options)
    subject.run()
    return subject


@pytest.fixture(scope="session")
def loop():
    """Returns the class `Loop`."""
    return Loop


@pytest.fixture(scope="session", name="crowd")
def _crowd():
    """Returns the function `crowd`."""
    return crowd


@pytest.fixture(scope="session")
def eos():
    return EOS
