"""The GPU kernels of an executor, compiled before it needs them."""

import hashlib
import importlib
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from openinfer_engine import LaunchSpec, ServePlan, read_config
from openinfer_kernels import CompileAhead
from openinfer_nn import pack_weights
from openinfer_runtime._model import Build, BuildOptions
from openinfer_runtime.startup._dry_run import META, run_dry
from openinfer_runtime.startup._executor_info import cache_group, executor_info
from openinfer_runtime.startup._memory_plan import MemoryPlan


def compile_ahead(
    spec: LaunchSpec,
    plan: ServePlan,
    build: Build,
    options: BuildOptions,
    arch: int,
) -> CompileAhead:
    """Begins to compile the GPU kernels of an executor, in processes beside this one.

    Args:
        spec: what was asked for.
        plan: what the line decided.
        build: allocates the model.
        options: what it will be built for.
        arch: compute capability of the GPU, 90 for sm_90.
    """
    packages = ("openinfer_kernels", "openinfer_runtime", "openinfer_nn", "openinfer_sampler")
    identity = (
        read_config(spec.model_path),
        repr((plan, sorted(spec.line_options.items()), options)),
        [_source_digest(package) for package in (*packages, build.__module__.partition(".")[0])],
    )
    run = partial(launch_dry, spec, plan, build, options)
    return CompileAhead(run, json.dumps(identity, sort_keys=True), arch)


def launch_dry(spec: LaunchSpec, plan: ServePlan, build: Build, options: BuildOptions) -> None:
    """Launches an executor on the meta device, and lets it step; under `noted_launches`."""
    with torch.inference_mode():
        model = build(replace(options, device=META, max_layers=1))
        assert isinstance(model, torch.nn.Module)
        pack_weights(model)
        group = cache_group(model.cache_spec(), options.block_size)
        memory = MemoryPlan(parts=(), num_blocks=1, max_model_len=plan.max_model_len)
        run_dry(model, executor_info(spec, plan, memory, group, META, ""))


def _source_digest(package: str) -> str:
    """Of a package's modules: what steps launch may change with each of them."""
    digest = hashlib.sha256()
    (folder,) = (Path(path) for path in importlib.import_module(package).__path__)
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
