"""Draws a server's figures on one GPU beside a peer's, as an SVG of bars.

    python benchmarks/plot_serving.py RESULT PEER OUT.svg

RESULT is what `gpu_serving.py --record` wrote, PEER a file like `results/peers-*.json`. A bar's
length is the figure divided by the peer's. Shorter is better; throughput is drawn inverted.
"""

import argparse
import json
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

LABELS = {
    "tpot_ms": "time per output token, one request (ms)",
    "ttft_32_ms": "first token, 32 in (ms)",
    "ttft_1024_ms": "first token, 1,024 in (ms)",
    "ttft_16384_ms": "first token, 16,384 in (ms)",
    "hit_1024_ms": "first token, 1,024 in, 16 new (ms)",
    "hit_16384_ms": "first token, 16,384 in, 16 new (ms)",
    "closed_8_tok_s": "output tokens a second, 8 clients",
    "closed_32_tok_s": "output tokens a second, 32 clients",
    "closed_128_tok_s": "output tokens a second, 128 clients",
    "poisson_ttft_p99_ms": "8 requests a second: first token, p99 (ms)",
    "poisson_tpot_p99_ms": "8 requests a second: per token, p99 (ms)",
    "start_s": "start to first token, warm caches (s)",
    "rss_mb": "resident memory, idle (MB)",
}
_LABEL_WIDTH, _BAR_WIDTH, _ROW, _BAR = 330, 360, 34, 12
_OURS, _PEER = "#2f6f4f", "#b9b9b9"


def figures(result: dict[str, Any]) -> dict[str, float]:
    """The figures of a record, by the names of `LABELS`."""
    found: dict[str, float] = {
        "start_s": result["start_to_first_token_s"],
        "rss_mb": result["memory_idle"]["rss_mb"],
    }
    for row in result["rows"]:
        length = row["input_len"]
        match row["mode"]:
            case "latency" if row["output_len"] > 100:
                found |= {"tpot_ms": row["tpot_ms"]["p50"], "ttft_32_ms": row["ttft_ms"]["p50"]}
            case "latency":
                found["ttft_1024_ms"] = row["ttft_ms"]["p50"]
            case "cold" if length > 1024:
                found[f"ttft_{length}_ms"] = row["ttft_ms"]["p50"]
            case "warm":
                found[f"hit_{length}_ms"] = row["ttft_ms"]["p50"]
            case "closed":
                found[f"closed_{row['concurrency']}_tok_s"] = row["output_tok_s"]
            case "poisson":
                found["poisson_ttft_p99_ms"] = row["ttft_ms"]["p99"]
                found["poisson_tpot_p99_ms"] = row["tpot_ms"]["p99"]
    return found


def draw(ours: dict[str, float], peer: dict[str, float]) -> str:
    """The plot, as the text of an SVG."""
    names = [name for name in LABELS if name in ours and name in peer]
    width, height = _LABEL_WIDTH + _BAR_WIDTH + 90, _ROW * len(names) + 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{_LABEL_WIDTH}" y="20" fill="{_OURS}">OpenInfer</text>',
        f'<text x="{_LABEL_WIDTH + 80}" y="20" fill="#777777">vLLM; shorter is better</text>',
    ]
    for index, name in enumerate(names):
        top = 34 + index * _ROW
        share = ours[name] / peer[name]
        share = 1 / share if name.endswith("tok_s") else share
        parts.append(
            f'<text x="{_LABEL_WIDTH - 8}" y="{top + 15}" text-anchor="end">'
            f"{escape(LABELS[name])}</text>"
        )
        bars = ((share, ours[name], _OURS), (1.0, peer[name], _PEER))
        for number, (length, value, color) in enumerate(bars):
            y, bar = top + number * (_BAR + 1), length * _BAR_WIDTH * 0.8
            parts.append(
                f'<rect x="{_LABEL_WIDTH}" y="{y}" width="{bar:.1f}" height="{_BAR}" '
                f'fill="{color}"/><text x="{_LABEL_WIDTH + bar + 5:.1f}" y="{y + 10}" '
                f'font-size="10">{value:,.4g}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("peer", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    ours = figures(json.loads(arguments.result.read_text()))
    peer = json.loads(arguments.peer.read_text())["figures"]
    arguments.out.write_text(draw(ours, peer))


if __name__ == "__main__":
    main()
