"""Limits, cache groups and identity of an executor."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from openinfer_engine import Ability, ExecutorInfo, LaunchSpec, ServePlan, read_config
from openinfer_kv_cache import CacheGroup, Plane
from openinfer_nn import CacheSpec, ModelError, read_checkpoint
from openinfer_runtime.errors import ModelRejected
from openinfer_runtime.startup._memory_plan import MemoryPlan
from openinfer_sampler import HONOURED

MAX_LOGPROBS = 20

ABILITIES: frozenset[Ability] = frozenset()
"""The row table holds the blocks of one full cache group, and no drafts or adapters."""


def fingerprint(spec: LaunchSpec) -> str:
    """Returns a digest of a checkpoint: config, quantization, tensor names, dtypes and shapes.

    Raises:
        ModelRejected: The headers of the tensors are unreadable.
    """
    tensors: list[tuple[str, str, tuple[int, ...]]] = []
    if spec.engine.load_format != "dummy":
        try:
            entries = read_checkpoint(Path(spec.model_path))
        except ModelError as error:
            raise ModelRejected(str(error)) from error
        tensors = sorted((entry.name, entry.dtype, entry.shape) for entry in entries.values())
    identity: list[Any] = [read_config(spec.model_path), tensors]
    if spec.engine.quantization is not None:
        identity.append(spec.engine.quantization)
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]


def executor_info(
    spec: LaunchSpec,
    plan: ServePlan,
    memory: MemoryPlan,
    group: CacheGroup,
    device: torch.device,
    model_fingerprint: str,
) -> ExecutorInfo:
    """Returns the info of an executor."""
    return ExecutorInfo(
        device=str(device),
        dtype=plan.dtype,
        vocab_size=plan.vocab_size,
        eos_token_ids=plan.eos_token_ids,
        max_model_len=memory.max_model_len,
        max_num_seqs=plan.max_num_seqs,
        max_num_batched_tokens=plan.max_num_batched_tokens,
        depth=2 if device.type == "cuda" else 1,
        has_device=device.type != "cpu",
        cache_groups=(group,),
        num_blocks=memory.num_blocks,
        model_fingerprint=model_fingerprint,
        max_logprobs=min(MAX_LOGPROBS, plan.vocab_size),
        abilities=ABILITIES,
        honoured=HONOURED | {"grammar", "prompt_logprobs"},
        memory=memory.parts,
    )


def cache_group(spec: CacheSpec, block_size: int) -> CacheGroup:
    """Returns the cache group of a model's cache spec."""
    planes = tuple(
        Plane(
            name=plane.name,
            bytes_per_token=spec.num_layers
            * plane.num_heads
            * plane.head_dim
            * spec.dtype.itemsize,
        )
        for plane in spec.planes
    )
    return CacheGroup(name=spec.group, kind=spec.kind, tokens_per_block=block_size, planes=planes)
