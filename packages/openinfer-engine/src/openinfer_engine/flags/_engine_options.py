"""The options of every engine. Flags are spelled as in vLLM; SGLang's spellings work, too."""

import math
from typing import Annotated, Literal

from msgspec import Struct

from openinfer_engine.flags._struct_flags import Option, flags_of
from openinfer_grammar import BackendName
from openinfer_kv_cache import KVEventsConfig

MIN_TRACE_BYTES = 1 << 20


class EngineOptions(Struct, frozen=True, kw_only=True):
    """The options of every engine. None means: decided from the model and the machine.

    A field's annotation gives its flag, its line in `--help` and in the guide's table, and its key
    in a configuration file.

    Raises:
        ValueError: an option is out of range, or two options contradict each other.
    """

    device: Annotated[Literal["auto", "cpu", "cuda"], Option("device to run on")] = "auto"
    dtype: Annotated[
        Literal["auto", "bfloat16", "float16", "float32"],
        Option("auto, bfloat16, float16 or float32", kind="dtype"),
    ] = "auto"
    max_model_len: Annotated[
        int | None,
        Option(
            "upper bound of prompt plus output tokens of one request; 32k and 32K are understood",
            names=("--max-model-len", "--context-length"),
            kind="count",
        ),
    ] = None
    max_num_seqs: Annotated[
        int | None,
        Option(
            "upper bound of requests running at once",
            names=("--max-num-seqs", "--max-running-requests"),
            kind="count",
        ),
    ] = None
    max_num_batched_tokens: Annotated[
        int | None,
        Option(
            "upper bound of tokens forwarded in one step",
            names=("--max-num-batched-tokens", "--chunked-prefill-size"),
            kind="count",
        ),
    ] = None
    block_size: Annotated[
        int, Option("tokens per cache block", names=("--block-size", "--page-size"))
    ] = 16
    kv_cache_bytes: Annotated[
        int | None,
        Option(
            "memory of the KV cache in bytes; 4G is understood",
            names=("--kv-cache-memory-bytes", "--kv-cache-bytes"),
            kind="count",
        ),
    ] = None
    gpu_memory_utilization: Annotated[
        float,
        Option(
            "fraction of the GPU's memory to use",
            names=("--gpu-memory-utilization", "--mem-fraction-static"),
        ),
    ] = 0.9
    enable_prefix_caching: Annotated[
        bool,
        Option(
            "reuse the KV cache of shared prompt prefixes (on by default)",
            off=("--no-enable-prefix-caching", "--disable-radix-cache"),
        ),
    ] = True
    scheduling_policy: Annotated[
        str,
        Option(
            "fcfs, priority, lpm, shortest-prefill-first, fair, another installed policy, or "
            "module:Class",
            names=("--scheduling-policy", "--schedule-policy"),
        ),
    ] = "fcfs"
    admission: Annotated[
        Literal["optimistic", "lifetime"],
        Option("admit a request when its first chunk fits, or when all its tokens fit"),
    ] = "optimistic"
    long_prefill_token_threshold: Annotated[
        int | None, Option("upper bound of tokens of one prompt in one step", kind="count")
    ] = None
    """None: as many as the step's token budget has left."""
    max_num_partial_prefills: Annotated[
        int | None,
        Option("upper bound of prompts that are partly prefilled at the same time", kind="count"),
    ] = None
    """None: no bound."""
    target_itl_ms: Annotated[
        float | None,
        Option(
            "target for the 99th percentile of the milliseconds between two tokens; limits prefill "
            "beside decode"
        ),
    ] = None
    """None: no limit on prefill."""
    eviction_policy: Annotated[
        Literal["lru", "lfu", "priority"],
        Option(
            "which cached blocks are evicted first",
            names=("--eviction-policy", "--radix-eviction-policy"),
        ),
    ] = "lru"
    structured_outputs_backend: Annotated[
        BackendName,
        Option(
            "library that enforces schemas and grammars; xgrammar is an extra",
            names=("--structured-outputs-backend", "--grammar-backend"),
        ),
    ] = "llguidance"
    kv_events_config: Annotated[
        KVEventsConfig | None,
        Option("publish when cache blocks are stored and evicted; a JSON object as in vLLM"),
    ] = None
    trace_file: Annotated[
        str | None, Option("write a JSON trace to this file, from the start on")
    ] = None
    trace_dir: Annotated[str | None, Option("folder of the traces that /start_profile starts")] = (
        None
    )
    """None: starting a trace needs a path."""
    trace_kernels: Annotated[
        bool,
        Option(
            "add the kernels of the first 128 steps to --trace-file, by torch's profiler",
            off=("--no-trace-kernels",),
        ),
    ] = False
    trace_max_bytes: Annotated[
        int, Option("upper bound of a trace file's bytes; later events are dropped", kind="count")
    ] = 256 << 20
    max_queued_requests: Annotated[
        int,
        Option(
            "upper bound of waiting requests; further ones get 503, or 400 if one request asks for "
            "more choices than that",
            names=("--max-num-queued-reqs", "--max-queued-requests"),
            kind="count",
        ),
    ] = 4096
    max_queued_tokens: Annotated[
        int,
        Option(
            "upper bound of waiting prompt tokens; further requests get 503",
            names=("--max-num-queued-tokens", "--max-queued-tokens"),
            kind="count",
        ),
    ] = 16_000_000
    tensor_parallel_size: Annotated[
        int,
        Option(
            "number of GPUs to split the model over",
            names=("--tensor-parallel-size", "-tp", "--tp-size", "--tp"),
        ),
    ] = 1
    enforce_eager: Annotated[
        bool,
        Option(
            "launch every operation instead of replaying CUDA graphs",
            names=("--enforce-eager", "--disable-cuda-graph"),
            off=("--no-enforce-eager",),
        ),
    ] = False
    num_threads: Annotated[int | None, Option("CPU threads of one forward pass")] = None
    """None: the number of physical cores; one thread for a very small model."""
    seed: Annotated[
        int | None, Option("seed of requests that set none, to make them reproducible")
    ] = None
    quantization: Annotated[
        Literal["int8", "int4"] | None,
        Option(
            "keep weights in 8 or 4 bits, on the CPU",
            names=("--quantization", "-q"),
        ),
    ] = None
    """Weights of linear layers are quantized while they are loaded. None: they keep `dtype`."""
    load_format: Annotated[
        Literal["auto", "safetensors", "dummy"],
        Option("file format of the weights; dummy draws random weights of the same shapes"),
    ] = "auto"

    def __post_init__(self) -> None:
        for name in ("long_prefill_token_threshold", "max_num_partial_prefills"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}; leave it out for none")
        target_ms = self.target_itl_ms
        if target_ms is not None and not 0 < target_ms < math.inf:
            raise ValueError(f"target_itl_ms must be a positive number, not {target_ms}")
        if self.trace_kernels and self.trace_file is None:
            raise ValueError("trace_kernels has no effect without trace_file; name one")
        if self.trace_max_bytes < MIN_TRACE_BYTES:
            raise ValueError(f"trace_max_bytes must be at least {MIN_TRACE_BYTES}")
        if self.is_publishing_kv_events and not self.enable_prefix_caching:
            raise ValueError(
                "kv_events_config: without prefix caching no block is ever stored; leave out "
                "either enable_kv_cache_events or --no-enable-prefix-caching"
            )

    @property
    def is_publishing_kv_events(self) -> bool:
        """Whether KV events are published."""
        return self.kv_events_config is not None and self.kv_events_config.is_publishing


ENGINE_FLAGS = flags_of(EngineOptions, "engine")
"""The flags of `EngineOptions`, one for each field."""
