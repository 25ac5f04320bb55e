"""Flags of other servers without a counterpart here, each with its explanation."""

from collections.abc import Mapping

_MISSING = frozenset(
    [
        "--async-scheduling",
        "--chat-template-content-format",
        "--cuda-graph-max-bs",
        "--cuda-graph-max-bs-decode",
        "--cudagraph-capture-sizes",
        "--default-chat-template-kwargs",
        "--disable-log-stats",
        "--enable-expert-parallel",
        "--enable-force-include-usage",
        "--enable-hierarchical-cache",
        "--enable-log-requests",
        "--enable-lora",
        "--kv-offload",
        "--kv-offloading-size",
        "--kv-transfer-config",
        "--lora-modules",
        "--lora-paths",
        "--max-cpu-loras",
        "--max-cudagraph-capture-size",
        "--max-long-partial-prefills",
        "--max-lora-rank",
        "--max-loras",
        "--max-loras-per-batch",
        "--no-enable-chunked-prefill",
        "--override-generation-config",
        "--sampling-defaults",
        "--spec-method",
        "--speculative-algorithm",
        "--speculative-config",
        "--sse-keep-alive-interval",
        "--stream-interval",
        "--swap-space",
        "--tokenizer",
        "--trust-remote-code",
        "--uds",
    ]
)
_ALWAYS_ON = frozenset(
    [
        "--disable-log-requests",
        "--enable-auto-tool-choice",
        "--enable-chunked-prefill",
        "--enable-metrics",
        "--enable-prompt-tokens-details",
        "--metrics",
    ]
)
_ONLY_VALUES = {
    "--pipeline-parallel-size": "1",
    "-pp": "1",
    "--data-parallel-size": "1",
    "-dp": "1",
    "--dp-size": "1",
    "--ep-size": "1",
    "--kv-cache-dtype": "auto",
}

ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(_MISSING, "is not available in this version of OpenInfer"),
    **dict.fromkeys(_ALWAYS_ON, "is always on here"),
    **{name: f"takes only {value} here" for name, value in _ONLY_VALUES.items()},
}
"""Explanation of each flag. In the error it follows the flag's name."""
