"""The flags of `serve`, `LLM` and friends as one table, in vLLM's spelling with SGLang's beside it.

What is not in the table is the business of `_line_options`.
"""

import argparse
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from openinfer._flag import Flag, Kind, Scope
from openinfer._flag_values import parse_count, parse_dtype, parse_float, parse_int, parse_json
from openinfer._server_flags import SERVER_FLAGS
from openinfer.errors import UsageError
from openinfer_engine import EngineOptions

FLAGS: tuple[Flag, ...] = (
    # the model
    Flag("model", ("--model", "--model-path"), "str", "server", "folder, installed name or hub id"),
    Flag("revision", ("--revision",), "str", "server", "branch, tag or commit on the hub"),
    Flag("download_dir", ("--download-dir",), "str", "server", "hub cache to use"),
    Flag("model_line", ("--model-line",), "str", "server", "which installed line serves the model"),
    Flag("engine", ("--engine",), "str", "server", "serve by this installed engine, such as sim"),
    # the engine
    Flag("device", ("--device",), "str", "engine", "where to run", choices=("auto", "cpu", "cuda")),
    Flag("dtype", ("--dtype",), "dtype", "engine", "auto, bfloat16, float16 or float32"),
    Flag(
        "max_model_len",
        ("--max-model-len", "--context-length"),
        "count",
        "engine",
        "prompt and output tokens of one request at most; 32k and 32K are understood",
    ),
    Flag(
        "max_num_seqs",
        ("--max-num-seqs", "--max-running-requests"),
        "count",
        "engine",
        "requests running at once",
    ),
    Flag(
        "max_num_batched_tokens",
        ("--max-num-batched-tokens", "--chunked-prefill-size"),
        "count",
        "engine",
        "tokens forwarded in one step",
    ),
    Flag("block_size", ("--block-size", "--page-size"), "int", "engine", "tokens of a cache block"),
    Flag(
        "kv_cache_bytes",
        ("--kv-cache-memory-bytes", "--kv-cache-bytes"),
        "count",
        "engine",
        "memory of the KV cache; 4G is understood",
    ),
    Flag(
        "gpu_memory_utilization",
        ("--gpu-memory-utilization", "--mem-fraction-static"),
        "float",
        "engine",
        "share of the GPU's memory to use",
    ),
    Flag(
        "enable_prefix_caching",
        ("--enable-prefix-caching",),
        "switch",
        "engine",
        "reuse the cache of shared prompt prefixes (on unless switched off)",
        off=("--no-enable-prefix-caching", "--disable-radix-cache"),
    ),
    Flag(
        "scheduling_policy",
        ("--scheduling-policy", "--schedule-policy"),
        "str",
        "engine",
        "fcfs, priority, lpm, shortest-prefill-first, fair, another installed one, or module:Class",
    ),
    Flag(
        "admission",
        ("--admission",),
        "str",
        "engine",
        "start a request when its first chunk fits, or when all of it does",
        choices=("optimistic", "lifetime"),
    ),
    Flag(
        "long_prefill_token_threshold",
        ("--long-prefill-token-threshold",),
        "count",
        "engine",
        "tokens of one prompt that one step takes at most",
    ),
    Flag(
        "max_num_partial_prefills",
        ("--max-num-partial-prefills",),
        "count",
        "engine",
        "prompts that may be partly prefilled at the same time",
    ),
    Flag(
        "target_itl_ms",
        ("--target-itl-ms",),
        "float",
        "engine",
        "milliseconds that 99 % of the gaps between tokens should keep: caps prefill beside decode",
    ),
    Flag(
        "eviction_policy",
        ("--eviction-policy", "--radix-eviction-policy"),
        "str",
        "engine",
        "which cached blocks are given up first",
        choices=("lru", "lfu", "priority"),
    ),
    Flag(
        "structured_outputs_backend",
        ("--structured-outputs-backend", "--grammar-backend"),
        "str",
        "engine",
        "what holds outputs to schemas and grammars; xgrammar is an extra",
        choices=("llguidance", "xgrammar"),
    ),
    Flag(
        "kv_events_config",
        ("--kv-events-config",),
        "json",
        "engine",
        "publishes what becomes of cached blocks; a JSON object as in vLLM",
    ),
    Flag(
        "trace_file", ("--trace-file",), "str", "engine", "writes a trace from the start, as JSON"
    ),
    Flag(
        "trace_dir",
        ("--trace-dir",),
        "str",
        "engine",
        "folder for the traces that /start_profile begins",
    ),
    Flag(
        "trace_kernels",
        ("--trace-kernels",),
        "switch",
        "engine",
        "single kernels of the first 128 steps in --trace-file, by torch's profiler",
        off=("--no-trace-kernels",),
    ),
    Flag(
        "trace_max_bytes",
        ("--trace-max-bytes",),
        "count",
        "engine",
        "size at which a trace begins to drop events",
    ),
    Flag(
        "max_queued_requests",
        ("--max-num-queued-reqs", "--max-queued-requests"),
        "count",
        "engine",
        "requests waiting at most; beyond it 503",
    ),
    Flag(
        "max_queued_tokens",
        ("--max-num-queued-tokens", "--max-queued-tokens"),
        "count",
        "engine",
        "prompt tokens waiting at most; beyond it 503",
    ),
    Flag(
        "tensor_parallel_size",
        ("--tensor-parallel-size", "-tp", "--tp-size", "--tp"),
        "int",
        "engine",
        "GPUs to split the model over",
    ),
    Flag(
        "enforce_eager",
        ("--enforce-eager", "--disable-cuda-graph"),
        "switch",
        "engine",
        "launch every operation instead of replaying CUDA graphs",
        off=("--no-enforce-eager",),
    ),
    Flag("num_threads", ("--num-threads",), "int", "engine", "CPU threads of a forward pass"),
    Flag("seed", ("--seed",), "int", "engine", "makes unseeded requests reproducible"),
    Flag(
        "quantization",
        ("--quantization", "-q"),
        "str",
        "engine",
        "keep weights in 8 or 4 bits, on the CPU",
        choices=("int8", "int4"),
    ),
    Flag(
        "load_format",
        ("--load-format",),
        "str",
        "engine",
        "dummy draws random weights",
        choices=("auto", "safetensors", "dummy"),
    ),
    *SERVER_FLAGS,
)

TERMINAL_FLAGS = (
    "--url", "--max-tokens", "--temperature", "--top-p", "--system", "--tools", "--run-tools",
)  # fmt: skip
"""Of `chat` and `complete` alone."""


def add_flags(
    parser: argparse.ArgumentParser, scopes: Iterable[Scope], *, only: Collection[str] = ()
) -> None:
    """Adds the table's flags of these scopes; only those the user sets reach the namespace.

    Args:
        parser: gets them.
        scopes: whose flags.
        only: of these the ones with such a destination; all if empty.
    """
    wanted = set(scopes)
    for flag in FLAGS:
        if flag.scope not in wanted or (only and flag.dest not in only):
            continue
        common: dict[str, Any] = {"dest": flag.dest, "default": argparse.SUPPRESS}
        if flag.kind == "switch":
            parser.add_argument(
                *flag.names, action="store_const", const=True, help=flag.help, **common
            )
            parser.add_argument(
                *flag.off, action="store_const", const=False, help="the opposite", **common
            )
            continue
        parser.add_argument(
            *flag.names,
            nargs="+" if flag.kind == "list" else None,
            type=_argument_type(flag.kind),
            choices=flag.choices or None,
            metavar=flag.dest.upper() if not flag.choices else None,
            help=(flag.help + _default(flag)).replace("%", "%%"),  # argparse formats it
            **common,
        )


class FlagFormatter(argparse.HelpFormatter):
    """Names a value once, behind all spellings of its flag."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


def _default(flag: Flag) -> str:
    """What the help says of an engine option that is not given."""
    value = getattr(EngineOptions(), flag.dest, None)
    return "" if value is None else f" ({value})"


_CONVERTERS: Mapping[Kind, Any] = {
    "str": str,
    "int": parse_int,
    "float": parse_float,
    "count": parse_count,
    "list": str,
    "dtype": parse_dtype,
    "json": parse_json,
}


def _argument_type(kind: Kind) -> Callable[[str], Any]:
    """A converter whose reasons argparse repeats."""

    def convert(text: str) -> Any:
        try:
            return _CONVERTERS[kind](text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


def convert_option(flag: Flag, value: Any, where: str) -> Any:
    """A value that did not come from the command line, as the flag wants it.

    Raises:
        UsageError: naming `where`.
    """
    if flag.kind == "switch":
        if not isinstance(value, bool):
            raise UsageError(f"{where} must be true or false")
        return value
    if flag.kind == "list":
        return [str(item) for item in value] if isinstance(value, list) else [str(value)]
    if flag.kind == "json" and isinstance(value, dict):
        return value
    if isinstance(value, list | dict | bool):
        raise UsageError(f"{where} must be one value, not {value!r}")
    try:
        converted = _CONVERTERS[flag.kind](str(value))
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error
    if flag.choices and converted not in flag.choices:
        raise UsageError(f"{where} must be one of {', '.join(flag.choices)}")
    return converted
