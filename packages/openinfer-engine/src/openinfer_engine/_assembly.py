"""Builds an engine loop from an executor and options: scheduler, cache, grammars and events."""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path

from openinfer_contract import CacheGroupInfo, EngineInfo, Limits, StartTrace
from openinfer_engine._executor import Ability, Executor, ExecutorInfo
from openinfer_engine.errors import UnsupportedPlans
from openinfer_engine.flags._engine_options import EngineOptions
from openinfer_engine.loop._engine_loop import LOOP_COMMANDS, EngineLoop
from openinfer_engine.loop._grammar_queue import GrammarQueue
from openinfer_engine.loop._kv_events import KVEventFlusher
from openinfer_engine.trace._trace_control import check_places
from openinfer_grammar import GrammarCompiler, check_backend, load_backend
from openinfer_kv_cache import EVICTION_POLICIES, HASH_RECIPE, KVCache, plan_slabs
from openinfer_scheduler import Scheduler, SchedulerConfig, load_policy, max_unsettled_tokens

LOOP_FEATURES = frozenset({"deadline"})
"""Request features that the loop and the scheduler support over any executor."""


def build_engine_info(
    executor: ExecutorInfo,
    options: EngineOptions,
    *,
    model_line: str = "",
    tp_size: int = 1,
    has_grammars: bool = False,
) -> EngineInfo:
    """Returns the identity, limits and abilities of an engine over this executor."""
    honoured = executor.honoured | LOOP_FEATURES | _cache_features(options)
    return EngineInfo(
        engine=f"openinfer-engine {version('openinfer-engine')}",
        model_line=model_line,
        model_fingerprint=executor.model_fingerprint,
        dtype=executor.dtype,
        vocab_size=executor.vocab_size,
        eos_token_ids=executor.eos_token_ids,
        limits=Limits(
            max_model_len=executor.max_model_len,
            max_num_seqs=executor.max_num_seqs,
            max_num_batched_tokens=executor.max_num_batched_tokens,
            max_queued_requests=options.max_queued_requests,
            max_queued_tokens=options.max_queued_tokens,
            max_logprobs=executor.max_logprobs,
            max_stop_token_ids=executor.max_stop_token_ids,
        ),
        cache_groups=_group_infos(executor),
        hash_recipe=HASH_RECIPE,
        honoured=honoured if has_grammars else honoured - {"grammar"},
        commands=executor.commands | LOOP_COMMANDS,
        tp_size=tp_size,
        device=executor.device,
        pid=os.getpid(),
        has_device=executor.has_device,
    )


def _group_infos(executor: ExecutorInfo) -> tuple[CacheGroupInfo, ...]:
    groups = executor.cache_groups
    per_unit = (1,) if len(groups) == 1 else plan_slabs(groups).blocks_per_slab
    return tuple(
        CacheGroupInfo(
            name=group.name,
            kind=group.kind,
            tokens_per_block=group.tokens_per_block,
            num_blocks=executor.num_blocks * num,
            bytes_per_block=group.bytes_per_block,
        )
        for group, num in zip(groups, per_unit, strict=True)
    )


def _cache_features(options: EngineOptions) -> frozenset[str]:
    """Returns the request features that the eviction policy supports."""
    return frozenset({"cache.hint"} if options.eviction_policy == "priority" else ())


def check_options(options: EngineOptions) -> None:
    """Checks the options that do not depend on an executor, which may take minutes to build.

    Raises:
        BackendUnavailable: the grammar library is not installed.
        PluginError: the scheduling policy does not load.
        TraceFailed: the folder of a trace does not exist.
        UnknownPolicy: no scheduling policy of that name is installed.
        UnusablePolicy: the policy's class lacks methods, or cannot be constructed without
            arguments.
    """
    load_policy(options.scheduling_policy)
    check_backend(options.structured_outputs_backend)
    check_places(options.trace_file, options.trace_dir)


def assemble(
    executor: Executor,
    options: EngineOptions,
    *,
    model_line: str = "",
    tokenizer: Path | None = None,
    clock: Callable[[], float] = time.monotonic,
    raises_policy_errors: bool = False,
) -> EngineLoop:
    """Builds the loop of an engine. The loop owns the executor, which is closed if building fails.

    Args:
        executor: an executor that is ready to step.
        options: options of the engine.
        model_line: value of `EngineInfo.model_line`.
        tokenizer: the checkpoint's tokenizer.json, which gives the vocabulary of grammars. It is
            read in the background. None, or no such file: requests cannot have grammars.
        clock: monotonic seconds; a simulator passes its own.
        raises_policy_errors: see `EngineLoop`.

    Raises:
        BackendUnavailable: the grammar library is not installed.
        PublisherError: KV events cannot be published as configured.
        TraceFailed: the trace file cannot be created, or the trace folder does not exist.
        UnknownPolicy: no scheduling policy of that name is installed.
        UnsupportedPlans: the executor lacks an ability that plans would need.
        UnusablePolicy: the policy's class lacks methods, or cannot be constructed without
            arguments.
        ValueError: limits contradict each other.
    """
    with ExitStack() as undo:
        undo.callback(executor.close)
        info = executor.info
        config = _scheduler_config(info, options)
        check_abilities(info, config, has_prefix_cache=options.enable_prefix_caching)
        cache = _cache(info, config, options, clock)
        scheduler = Scheduler(config, cache, load_policy(options.scheduling_policy))
        grammars = _grammar_queue(info, options, tokenizer)
        if grammars is not None:
            undo.callback(grammars.close)
        events, kv_events = options.kv_events_config, None
        if events is not None and events.is_publishing:
            kv_events = KVEventFlusher(cache, events)
            undo.callback(kv_events.close)
        engine_info = build_engine_info(
            info,
            options,
            model_line=model_line,
            tp_size=options.tensor_parallel_size,
            has_grammars=grammars is not None,
        )
        loop = EngineLoop(
            executor,
            scheduler,
            engine_info,
            clock,
            kv_events,
            grammars,
            trace_dir=options.trace_dir,
            trace_max_bytes=options.trace_max_bytes,
            raises_policy_errors=raises_policy_errors,
        )
        if options.trace_file is not None:
            loop.start_trace(StartTrace(options.trace_file, options.trace_kernels))
        undo.pop_all()
    return loop


def check_abilities(info: ExecutorInfo, config: SchedulerConfig, *, has_prefix_cache: bool) -> None:
    """Compares what plans will contain with what the executor runs.

    Raises:
        UnsupportedPlans: The executor lacks an ability. Without this check it would ignore a part
            of each plan and sample wrong tokens.
    """
    groups = info.cache_groups
    kinds = {group.kind for group in groups}
    needed: dict[Ability, tuple[bool, str]] = {
        "several_groups": (len(groups) > 1, f"the model has {len(groups)} cache groups"),
        "window_groups": ("window" in kinds, "a cache group is of kind window"),
        "state_groups": ("state" in kinds, "a cache group is of kind state"),
        "copies": (
            "state" in kinds and has_prefix_cache,
            "states are copied to and from the prefix cache",
        ),
        "drafts": (config.num_draft_tokens > 0, f"num_draft_tokens={config.num_draft_tokens}"),
        "adapters": (config.max_adapters is not None, f"max_adapters={config.max_adapters}"),
        "roles": (config.role != "both", f"role={config.role}"),
    }
    missing: dict[str, str] = {
        ability: reason
        for ability, (is_needed, reason) in needed.items()
        if is_needed and ability not in info.abilities
    }
    if missing:
        raise UnsupportedPlans(missing)


def _scheduler_config(info: ExecutorInfo, options: EngineOptions) -> SchedulerConfig:
    target_ms = options.target_itl_ms
    return SchedulerConfig(
        max_model_len=info.max_model_len,
        max_num_seqs=info.max_num_seqs,
        max_num_batched_tokens=info.max_num_batched_tokens,
        depth=info.depth,
        max_queued_requests=options.max_queued_requests,
        max_queued_tokens=options.max_queued_tokens,
        eos_token_ids=info.eos_token_ids,
        admission=options.admission,
        max_chunk_tokens=options.long_prefill_token_threshold,
        max_partial_prefills=options.max_num_partial_prefills,
        target_itl_s=None if target_ms is None else target_ms / 1000.0,
        seed=options.seed,
    )


def _cache(
    info: ExecutorInfo, config: SchedulerConfig, options: EngineOptions, clock: Callable[[], float]
) -> KVCache:
    make_policy = EVICTION_POLICIES[options.eviction_policy]
    is_single = len(info.cache_groups) == 1
    return KVCache(
        info.cache_groups,
        num_blocks=info.num_blocks if is_single else None,
        num_slabs=None if is_single else info.num_blocks,
        max_unsettled_tokens=max_unsettled_tokens(config, info.cache_groups),
        has_prefix_cache=options.enable_prefix_caching,
        has_events=options.is_publishing_kv_events,
        eviction=None if make_policy is None else partial(make_policy, clock),
        clock=clock,
    )


def _grammar_queue(
    info: ExecutorInfo, options: EngineOptions, tokenizer: Path | None
) -> GrammarQueue | None:
    """Returns the queue of grammars; None if the executor takes no masks or has no tokenizer."""
    check_backend(options.structured_outputs_backend)
    if "grammar" not in info.honoured or tokenizer is None or not tokenizer.is_file():
        return None
    compiler = GrammarCompiler(
        partial(
            load_backend,
            options.structured_outputs_backend,
            tokenizer,
            vocab_size=info.vocab_size,
            eos_token_ids=info.eos_token_ids,
        )
    )
    return GrammarQueue(compiler, vocab_size=info.vocab_size, num_slots=info.max_num_seqs)
