"""The Qwen3 model line: which checkpoints it claims, and how an executor for one is launched.

Only `launch` imports torch, because a front process calls `probe` and `plan`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from openinfer_engine import (
    CheckpointLine,
    Executor,
    LaunchSpec,
    OptionRejected,
    heavy_imports,
)
from openinfer_qwen3.config import Qwen3Config

if TYPE_CHECKING:
    from openinfer_qwen3.model import Qwen3Model
    from openinfer_runtime import BuildOptions


class Qwen3Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of this line."""

    attention_backend: Literal["auto", "triton", "native", "cpu", "torch", "reference"] = "auto"
    """Back end of attention; the start fails if it cannot run. "reference" also runs each layer as
    its `forward` is written, without fused ops."""


class Qwen3Line(CheckpointLine[Qwen3Config]):
    """`openinfer_engine.ModelLine` for Qwen3 dense models."""

    name = "qwen3"
    options: type[msgspec.Struct] = Qwen3Options

    def read(self, config: Mapping[str, Any], /) -> Qwen3Config:
        """Reads a parsed config.json; raises UnsupportedConfig."""
        return Qwen3Config.from_dict(config)

    def launch(self, spec: LaunchSpec, /) -> Executor:
        """Loads the weights and returns the executor, ready to step.

        Raises:
            OptionRejected: An option cannot be honoured, or not with this model.
            DeviceError: The device is missing or too small; says what to do.
        """
        plan, config = self.plan(spec), self.config_of(spec)
        backend = self.line_options(spec).attention_backend

        with heavy_imports():
            from openinfer_kernels import BackendUnavailable
            from openinfer_qwen3.model import Qwen3Model
            from openinfer_runtime import launch_torch

        def build(options: "BuildOptions") -> "Qwen3Model":
            # All layers of Qwen3 are of one kind.
            num_layers = 1 if options.layers == "one_of_each" else config.num_layers
            try:
                return Qwen3Model(
                    replace(config, num_layers=num_layers),
                    device=options.device,
                    dtype=options.dtype,
                    block_size=options.block_size,
                    max_model_len=options.max_model_len,
                    attention_backend=backend,
                    quantization=options.quantization,
                    is_fused=backend != "reference",
                )
            except BackendUnavailable as error:
                if error.backend != backend:
                    raise
                reason = f"{backend} cannot run here: {error.reason}; leave it out"
                raise OptionRejected("attention_backend", reason) from error

        return launch_torch(spec, plan, build)


LINE = Qwen3Line()
