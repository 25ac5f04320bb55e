"""GPU kernels of an executor, compiled while its weights are loaded."""

import hashlib
import importlib
import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from openinfer_engine import LaunchSpec, ServePlan, read_config
from openinfer_kernels import CompileAhead, Gpu
from openinfer_nn import pack_weights
from openinfer_runtime._model import Build, BuildOptions
from openinfer_runtime.startup._dry_run import META, run_dry
from openinfer_runtime.startup._executor_info import cache_group, executor_info
from openinfer_runtime.startup._memory_plan import MemoryPlan

_PACKAGES = ("openinfer_kernels", "openinfer_runtime", "openinfer_nn", "openinfer_sampler")


def compile_ahead(
    spec: LaunchSpec,
    plan: ServePlan,
    build: Build,
    options: BuildOptions,
    gpu: Gpu,
) -> CompileAhead:
    """Starts to compile the GPU kernels of an executor in processes beside this one.

    Args:
        spec: Launch request.
        plan: Limits, device and dtype that the model line chose.
        build: Allocates the model.
        options: Options of the model that will be built.
        gpu: GPU to compile for.
    """
    run = partial(launch_dry, spec, plan, build, options)
    return CompileAhead(run, kernel_list_identity(spec, plan, build, options), gpu)


def kernel_list_identity(
    spec: LaunchSpec, plan: ServePlan, build: Build, options: BuildOptions
) -> str:
    """Returns the key under which the list of an executor's kernels is stored.

    It covers the checkpoint's config, all options that change launches (see `BuildOptions`) and
    the source of every package that takes part in a step.
    """
    identity = (
        read_config(spec.model_path),
        repr((plan, sorted(spec.line_options.items()), options)),
        [_source_digest(module) for module in (*_PACKAGES, _module_of(build))],
    )
    return json.dumps(identity, sort_keys=True)


def launch_dry(spec: LaunchSpec, plan: ServePlan, build: Build, options: BuildOptions) -> None:
    """Runs every kind of step on the meta device, over one layer of each kind.

    It is what `openinfer_kernels.CompileAhead` runs.
    """
    with torch.inference_mode():
        model = build(replace(options, device=META, layers="one_of_each"))
        assert isinstance(model, torch.nn.Module)
        pack_weights(model)
        group = cache_group(model.cache_spec(), options.block_size)
        memory = MemoryPlan(parts=(), num_blocks=1, max_model_len=plan.max_model_len)
        run_dry(model, executor_info(spec, plan, memory, group, META, ""))


def _module_of(build: Build) -> str:
    """Returns the top-level package or module that defines a model line's build function."""
    function: object = build
    while isinstance(function, partial):
        function = function.func
    if not hasattr(function, "__qualname__"):  # an object with __call__
        function = type(function)
    return function.__module__.partition(".")[0]


def _source_digest(name: str) -> str:
    """Returns a digest of the source of a package, or of a module that is a single file."""
    module = importlib.import_module(name)
    folders = getattr(module, "__path__", None)
    if folders is not None:
        paths = sorted(path for folder in folders for path in Path(folder).rglob("*.py"))
    elif getattr(module, "__file__", None):
        paths = [Path(str(module.__file__))]
    else:
        # Code typed into a shell has no file to compare. A random digest finds no stored list.
        return os.urandom(16).hex()
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()
