"""A model whose answers depend on every cache entry it reads, and a loop that drives it."""

import hashlib
import random
from collections import deque
from dataclasses import dataclass, field

import numpy as np
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
from openinfer_kv_cache import CacheGroup, KVCache, Plane
from openinfer_scheduler import Scheduler, SchedulerConfig, StepPlan, StepResult

VOCAB_SIZE = 40
EOS = 39


def entry_of(earlier, token_id, adapter_uid):
    """The cache entry of a position: it depends on every entry before it, as in a real model."""
    digest = hashlib.blake2b(digest_size=8, key=adapter_uid)
    digest.update(earlier.tobytes())
    digest.update(int(token_id).to_bytes(4, "little"))
    return np.uint64(int.from_bytes(digest.digest(), "little"))


def next_token(entries, seed, *, banned=()):
    digest = hashlib.blake2b(entries.tobytes() + seed.to_bytes(8, "little"), digest_size=64)
    ranking = np.frombuffer(digest.digest(), np.uint8)
    return next(int(t) % VOCAB_SIZE for t in ranking if int(t) % VOCAB_SIZE not in banned)


def banned_ids(request, num_output):
    """What the sampler masks: stop ids before min_tokens."""
    if num_output >= request.stop.min_tokens:
        return ()
    eos = () if request.stop.ignore_eos else (EOS,)
    return (*request.stop.stop_token_ids, *eos)


@dataclass
class Row:
    """One slot's state on the device."""

    request: GenerateRequest
    given: list[int]
    num_output: int
    seed: int
    table: list[int]
    num_entries: int
    last_token: int | None = None
    adapter_slot: int | None = None


@dataclass
class Launched:
    plan: StepPlan
    blocks: set[int] = field(default_factory=set)
    outcome: object = None


class ContentExecutor:
    """Runs plans on remembered block contents; each step runs as late as its `wait`.

    Every forward reads all its earlier entries through the row's block table and writes its own,
    so a wrong, stale or early reused block changes the tokens. Memory is shared by the rows as on
    a device: rows of one step read what was there before the step. A failed step scribbles over
    everything it should have written.
    """

    def __init__(
        self, config, *, num_blocks, tokens_per_block, rng=None, fail_step=0.0, fail_row=0.0
    ):
        self.config = config
        self.tokens_per_block = tokens_per_block
        self.memory = np.zeros((num_blocks, tokens_per_block), np.uint64)
        self.slots = {}
        self.launched = deque()
        self.rng = rng or random.Random(0)
        self.fail_step = fail_step
        self.fail_row = fail_row
        self.seeds = {}
        self.last_step = 0
        self.host_slots = {}
        self.host_tables = {}
        self.host_requests = {}
        self.adapter_places = {}
        self.num_drafted = self.num_accepted = 0

    def launch(self, plan):
        """Checks a plan against what was launched before, and queues it."""
        assert plan.step_id > self.last_step
        self.last_step = plan.step_id
        assert len(self.launched) < self.config.depth
        assert plan.num_tokens <= self.config.max_num_batched_tokens
        assert len({row.slot for row in plan.rows}) == len(plan.rows) <= self.config.max_num_seqs
        assert len(set(plan.ends)) == len(plan.ends)
        kinds = [row.token_ids is not None for row in plan.rows]
        assert kinds == sorted(kinds), "decode rows come first"
        for slot in plan.ends:
            del self.host_slots[slot], self.host_tables[slot]
        for start in plan.starts:
            self.host_requests[start.slot] = start.request
            self._place_adapter(start)
            assert start.slot not in self.host_slots
            assert 0 <= start.slot < self.config.max_num_seqs
            self.host_slots[start.slot] = start.request.request_id
            self.host_tables[start.slot] = start.block_ids[0].tolist()
            known = self.seeds.setdefault(start.request.request_id, start.seed)
            assert known == start.seed, "a request keeps its seed"
            assert start.num_cached_tokens < len(start.token_ids)
            assert start.num_cached_tokens == len(start.block_ids[0]) * self.tokens_per_block
        step = Launched(plan)
        in_flight = set().union(*(other.blocks for other in self.launched))
        for row in plan.rows:
            new = row.new_block_ids[0].tolist()
            assert not in_flight.intersection(new), "a block in flight was handed out again"
            self.host_tables[row.slot] += new
            step.blocks.update(self.host_tables[row.slot])
            self._check_row(row)
        self._check_adapters(plan)
        self.launched.append(step)

    def _check_row(self, row):
        """What a plan says of drafts and masks is what request and configuration say."""
        request = self.host_requests[row.slot]
        assert row.needs_mask == (row.is_sampled and request.grammar is not None)
        assert 0 <= row.num_drafts <= self.config.num_draft_tokens
        if request.speculate is False or request.grammar is not None:
            assert row.num_drafts == 0
        if self.config.role == "prefill":
            assert row.token_ids is not None, "an engine that only prefills decodes nothing"

    def _place_adapter(self, start):
        """An adapter is loaded where the plan says, over whatever was there."""
        adapter, place = start.request.adapter, start.adapter_slot
        if adapter is None or self.config.max_adapters is None:
            assert place is None
            return
        assert 0 <= place < self.config.max_adapters
        self.adapter_places[place] = adapter.uid

    def _check_adapters(self, plan):
        requests = [self.host_requests[row.slot] for row in plan.rows]
        uids = {request.adapter.uid for request in requests if request.adapter is not None}
        if self.config.max_adapters is not None:
            assert len(uids) <= self.config.max_adapters
            assert uids <= set(self.adapter_places.values()), "an adapter in use was replaced"

    def wait(self, step_id):
        """The oldest step's result, or None if it failed."""
        step = self.launched.popleft()
        assert step.plan.step_id == step_id
        self._begin(step.plan)
        if self.rng.random() < self.fail_step:
            self._scribble(step.plan)
            return None
        return self._run(step.plan)

    def _begin(self, plan):
        for slot in plan.ends:
            del self.slots[slot]
        for start in plan.starts:
            assert start.slot not in self.slots
            self.slots[start.slot] = Row(
                start.request,
                start.token_ids.tolist(),
                start.num_output_tokens,
                start.seed,
                start.block_ids[0].tolist(),
                start.num_cached_tokens,
            )
        for row in plan.rows:
            self.slots[row.slot].table += row.new_block_ids[0].tolist()

    def _places(self, state, num_tokens):
        end = state.num_entries + num_tokens
        assert end <= len(state.table) * self.tokens_per_block, "a position without a block"
        positions = np.arange(state.num_entries, end)
        return np.array(state.table)[
            positions // self.tokens_per_block
        ], positions % self.tokens_per_block

    def _scribble(self, plan):
        for row in plan.rows:
            state = self.slots[row.slot]
            self.memory[self._places(state, row.num_tokens)] = self.rng.getrandbits(63)
            state.num_entries += row.num_tokens
            state.last_token = self.rng.randrange(VOCAB_SIZE)
            state.num_output += row.is_sampled

    def _draft(self, state, entries, num_drafts):
        """What a drafter guesses: the right tokens, up to where it goes wrong."""
        drafts = []
        adapter_uid = state.request.adapter.uid if state.request.adapter else b""
        for _ in range(num_drafts):
            banned = banned_ids(state.request, state.num_output + len(drafts))
            right = next_token(entries, state.seed, banned=banned)
            drafts.append(right if self.rng.random() < 0.7 else (right + 1) % VOCAB_SIZE)
            entries = np.append(entries, entry_of(entries, drafts[-1], adapter_uid))
        return drafts

    def _accept(self, state, entries, start, drafts):
        """The tokens that the verified positions sample: the right drafts and one more."""
        tokens = []
        for offset in range(len(drafts) + 1):
            banned = banned_ids(state.request, state.num_output + len(tokens))
            tokens.append(next_token(entries[: start + offset], state.seed, banned=banned))
            if offset == len(drafts) or tokens[-1] != drafts[offset]:
                break
        return tokens

    def _run(self, plan):
        before = self.memory.copy()
        counts, token_ids, failed = [], [], {}
        for index, row in enumerate(plan.rows):
            state = self.slots[row.slot]
            entries = before[state.table].reshape(-1)[: state.num_entries]
            adapter_uid = state.request.adapter.uid if state.request.adapter else b""
            drafts = []
            if row.token_ids is None:
                assert state.last_token is not None
                first = np.append(entries, entry_of(entries, state.last_token, adapter_uid))
                drafts = self._draft(state, first, row.num_drafts)
                ids = [state.last_token, *drafts]
            else:
                ids = row.token_ids.tolist()
                assert ids == state.given[state.num_entries : state.num_entries + len(ids)]
            assert len(ids) == row.num_tokens
            places = self._places(state, row.num_tokens)
            for token_id in ids:
                entries = np.append(entries, entry_of(entries, token_id, adapter_uid))
            self.memory[places] = entries[state.num_entries :]
            state.num_entries += row.num_tokens - len(drafts)
            counts.append(int(row.is_sampled))
            if not row.is_sampled:
                continue
            assert row.token_ids is None or state.num_entries == len(state.given)
            sampled = self._accept(state, entries, state.num_entries, drafts)
            self.num_drafted += len(drafts)
            self.num_accepted += len(sampled) - 1
            state.num_entries += len(sampled) - 1
            state.last_token = sampled[-1]
            state.num_output += len(sampled)
            if self.rng.random() < self.fail_row:
                failed[index] = "NaN logits"
                counts[-1] = 0
            else:
                counts[-1] = len(sampled)
                token_ids += sampled
        return StepResult(
            step_id=plan.step_id,
            counts=np.array(counts, np.int32),
            token_ids=np.array(token_ids, np.uint32),
            failed=failed,
        )


class Loop:
    """Scheduler and executor, stepped by hand; every stream is held to the contract."""

    def __init__(
        self,
        *,
        num_blocks=64,
        tokens_per_block=4,
        policy=None,
        rng=None,
        fail_step=0.0,
        fail_row=0.0,
        has_prefix_cache=True,
        executor=None,
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
        planes = (Plane(name="kv", bytes_per_token=8),)
        group = CacheGroup(name="full", tokens_per_block=tokens_per_block, planes=planes)
        self.cache = KVCache((group,), num_blocks=num_blocks, has_prefix_cache=has_prefix_cache)
        self.scheduler = Scheduler(self.config, self.cache, policy)
        self.executor = executor or ContentExecutor(
            self.config,
            num_blocks=num_blocks,
            tokens_per_block=tokens_per_block,
            rng=rng,
            fail_step=fail_step,
            fail_row=fail_row,
        )
        self.now = 100.0
        self.num_added = 0
        self.in_flight = deque()
        self.requests = {}
        self.streams = {}
        self.events = {}
        self.output = {}
        self.ends = {}

    def add(self, prompt, *, max_tokens=8, request_id=None, **fields):
        """Queues a request; returns its id, or the rejection."""
        request_id = request_id or f"r{self.num_added}"
        stop = StopRules(
            max_tokens=max_tokens,
            min_tokens=fields.pop("min_tokens", 0),
            stop_token_ids=fields.pop("stop_token_ids", ()),
            ignore_eos=fields.pop("ignore_eos", False),
        )
        seed = fields.pop("seed", None)
        is_loading = fields.pop("is_loading", False)
        request = GenerateRequest(
            request_id=request_id,
            prompt_token_ids=pack_ids(prompt),
            stop=stop,
            sampling=Sampling(seed=seed),
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

    def plan(self, *, launch=True):
        """Plans a step and launches it, or reverts it."""
        self.now += 0.001
        plan = self.scheduler.plan(self.now)
        if plan is None:
            return None
        if not launch:
            self.scheduler.revert(plan.step_id)
            return plan
        self.executor.launch(plan)
        self.in_flight.append(plan.step_id)
        for row in plan.rows:
            assert self.executor.host_slots[row.slot] not in self.ends, (
                "an ended request is planned"
            )
        return plan

    def complete(self):
        """Waits for the oldest step in flight and applies or fails it."""
        self.now += 0.001
        step_id = self.in_flight.popleft()
        result = self.executor.wait(step_id)
        if result is None:
            return self.take(self.scheduler.fail(step_id, "the step failed", self.now))
        return self.take(self.scheduler.apply(result, self.now))

    def loaded(self, *request_ids):
        return self.take(self.scheduler.loaded(request_ids, self.now))

    def abort(self, *request_ids):
        return self.take(self.scheduler.abort(request_ids, self.now))

    def step(self):
        """What an engine does: keep `depth` plans in flight, complete the oldest."""
        while self.plan() is not None:
            pass
        if self.in_flight:
            self.complete()

    def run(self, max_steps=1500):
        """Steps until nothing is left, then checks that nothing is."""
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
        assert not self.executor.host_slots

    def check_streams(self):
        """Every request ended, with the tokens that a run of it alone gives."""
        for request_id, request in self.requests.items():
            assert self.streams[request_id].is_ended
            tokens, reason = alone(
                request, self.executor.seeds.get(request_id), self.config.max_model_len
            )
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


def alone(request, seed, max_model_len):
    """The tokens and finish reason of a request without blocks, batches or plans."""
    if seed is None:
        return [], ""
    adapter_uid = request.adapter.uid if request.adapter else b""
    entries = np.empty(0, np.uint64)
    for token_id in unpack_ids(request.prompt_token_ids):
        entries = np.append(entries, entry_of(entries, token_id, adapter_uid))
    stops = set(request.stop.stop_token_ids) | (set() if request.stop.ignore_eos else {EOS})
    num_output, tokens = request.num_output_prefix, []
    while True:
        token_id = next_token(entries, seed, banned=banned_ids(request, num_output))
        tokens.append(token_id)
        num_output += 1
        if token_id in stops and num_output > request.stop.min_tokens:
            return tokens, "stop"
        if num_output == request.stop.max_tokens or len(entries) + 1 == max_model_len:
            return tokens, "length"
        entries = np.append(entries, entry_of(entries, token_id, adapter_uid))


@pytest.fixture(scope="session")
def loop():
    """The `Loop` class."""
    return Loop


@pytest.fixture(scope="session")
def eos():
    return EOS


@pytest.fixture(scope="session")
def content_executor():
    """The `ContentExecutor` class."""
    return ContentExecutor
