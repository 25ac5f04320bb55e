"""Cost of grammars for the step thread, and their memory, over a vocabulary of 151,936 ids.

    python benchmarks/grammar.py            (--record [FOLDER] writes a result)

The vocabulary is made up: bytes, pairs of printing characters, words of syllables with and without
a space before them, in three cases, and Chinese characters; --tokenizer FILE reads a tokenizer.json
instead. As in the engine, matchers are made on the compiler's thread and asked on this one. Every
row walks through texts of its grammar, one token drawn evenly from the mask after the other, and
begins anew where one has ended. A step's figure is the CPU time of all its rows together, and the
wall time by one thread and by as many as the engine would use, in turns: others on the machine
lengthen the first a little, and wall times, those of compiling too, a lot.
"""

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from _others import OthersMeter

from openinfer_contract import Grammar
from openinfer_engine import physical_cores
from openinfer_grammar import (
    Constraint,
    GrammarCompiler,
    MaskFiller,
    load_backend,
    num_mask_words,
)
from openinfer_testing import results
from openinfer_testing.grammar import byte_characters

VOCAB_SIZE, NUM_TOKENS, EOS = 151_936, 151_643, 151_645
BATCHES = (1, 64)
SECONDS = 4.0
_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TOOL = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 40},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 8},
    },
    "required": ["city", "days", "unit", "tags"],
    "additionalProperties": False,
}
_WIDE = {"type": "object", "properties": {f"field_{n}": {"type": "string"} for n in range(100)}}


def _schema(schema: Any) -> Grammar:
    return Grammar(kind="json_schema", text=json.dumps(schema))


GRAMMARS = {
    "schema of a tool": _schema(_TOOL),
    "schema, 100 optional properties": _schema(_WIDE),
    "schema, string of at most 4,000": _schema({"type": "string", "maxLength": 4000}),
    "json_object": Grammar(kind="json_object"),
    "regex, e-mail": Grammar(
        kind="regex", text=r"[a-zA-Z0-9._%+-]{1,64}@[a-zA-Z0-9.-]{1,255}\.[a-zA-Z]{2,24}"
    ),
    "regex, 200 letters": Grammar(kind="regex", text=r"\p{L}{1,200}"),
    "choice of three": Grammar(kind="choice", text='["yes", "no", "I do not know"]'),
}


def _tokens() -> Iterator[bytes]:
    """Tokens of the made-up vocabulary, without end."""
    yield from (bytes([byte]) for byte in range(256))
    printing = range(32, 127)
    yield from (bytes(pair) for pair in product(printing, printing))
    yield from (chr(code).encode() for code in range(0x4E00, 0x4E00 + 20_000))
    chance = random.Random(0)
    onsets = ("", *"bcdfghjklmnprstvwz", "br", "ch", "pl", "sh", "st", "th", "tr")
    rests = [vowel + end for vowel in "aeiou" for end in ("", *"lmnrst", "nd", "ng", "st")]
    while True:
        count = chance.choice((1, 2, 2, 3, 3, 4))
        word = "".join(chance.choice(onsets) + chance.choice(rests) for _ in range(count))
        word = chance.choice((word, word, word, word.title(), word.upper()))
        yield (chance.choice(("", " ", " ")) + word).encode()


def tokenizer_json() -> bytes:
    """The made-up vocabulary as a tokenizer.json."""
    spelling = byte_characters()
    vocab: dict[str, int] = {}
    for token in _tokens():
        if len(vocab) == NUM_TOKENS:
            break
        vocab.setdefault("".join(spelling[byte] for byte in token), len(vocab))
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [
        {"id": NUM_TOKENS + index, "content": name, "special": True, **flags}
        for index, name in enumerate(_SPECIALS)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    content = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }
    return json.dumps(content).encode()


class Row:
    """One output on its way through texts of a grammar."""

    def __init__(self, compiler: GrammarCompiler, grammar: Grammar, seed: int) -> None:
        self._compiler, self._grammar = compiler, grammar
        self._chance = np.random.default_rng(seed)
        self.compile_s: list[float] = []
        self.num_forced = 0
        self._begin()

    def _begin(self) -> None:
        begun = time.perf_counter()
        self.constraint: Constraint = self._compiler.compile(self._grammar).result()
        self.compile_s.append(time.perf_counter() - begun)

    def draw(self, mask: Any) -> int:
        self.num_forced += bool(self.constraint.forced)
        allowed = np.unpackbits(mask.view(np.uint8), bitorder="little").nonzero()[0]
        return int(self._chance.choice(allowed))

    def go_on(self, token_id: int) -> None:
        if token_id == EOS:
            self._begin()
        else:
            self.constraint.accept([token_id])


def measure(
    compiler: GrammarCompiler, fillers: list[MaskFiller], grammar: Grammar, batch: int
) -> dict[str, Any]:
    """Measures steps of `batch` rows under one grammar. The fillers take turns."""
    before = _rss_mib()
    rows = [Row(compiler, grammar, seed) for seed in range(batch)]
    masks = np.zeros((batch, num_mask_words(VOCAB_SIZE)), np.uint32)
    fills, walls, accepts = [], {filler: [] for filler in fillers}, []
    give_up_at = time.perf_counter() + SECONDS
    while time.perf_counter() < give_up_at:
        filler = fillers[len(fills) % len(fillers)]
        begun = time.perf_counter()
        failures = filler.fill([(r.constraint, m) for r, m in zip(rows, masks, strict=True)])
        walls[filler].append(time.perf_counter() - begun)
        assert not failures, failures
        fills.append(sum(row.constraint.fill_seconds for row in rows))
        drawn = [row.draw(mask) for row, mask in zip(rows, masks, strict=True)]
        taken = 0.0
        for row, token_id in zip(rows, drawn, strict=True):
            begun = time.thread_time()
            row.go_on(token_id)
            taken += (time.thread_time() - begun) * (token_id != EOS)
        accepts.append(taken)
    compiles = np.concatenate([row.compile_s for row in rows]) * 1e3
    return {
        "rows": batch,
        "steps": len(fills),
        "fill_us": _spread(fills),
        "fill_wall_us": [_spread(wall) for wall in walls.values()],
        "accept_us": _spread(accepts),
        "compile_wall_ms": {"first": round(compiles[0], 2), "p50": round(np.median(compiles), 2)},
        "share_forced": round(sum(row.num_forced for row in rows) / (batch * len(fills)), 2),
        "rss_mib": round(_rss_mib() - before, 1),
    }


def _spread(seconds: list[float]) -> dict[str, float]:
    values = np.array(seconds) * 1e6
    p50, p99 = np.percentile(values, (50, 99))
    return {"p50": round(p50, 1), "p99": round(p99, 1), "max": round(values.max(), 1)}


def _rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json of 151,936 ids or less")
    results.add_record_flag(parser)
    args = parser.parse_args()
    others = OthersMeter()
    with tempfile.TemporaryDirectory() as folder:
        path = args.tokenizer or Path(folder) / "tokenizer.json"
        if args.tokenizer is None:
            path.write_bytes(tokenizer_json())
        before, begun = _rss_mib(), time.thread_time()
        load = partial(load_backend, "llguidance", path)
        backend = load(vocab_size=VOCAB_SIZE, eos_token_ids=(EOS,))
        vocabulary = {
            "build_s": round(time.thread_time() - begun, 2),
            "rss_mib": round(_rss_mib() - before, 1),
            "is_made_up": args.tokenizer is None,
        }
    print(json.dumps({"vocabulary": vocabulary}), flush=True)
    compiler = GrammarCompiler(lambda: backend)
    fillers = [MaskFiller(1), MaskFiller(physical_cores())]
    cases = {}
    for name, grammar in GRAMMARS.items():
        cases[name] = [measure(compiler, fillers, grammar, batch) for batch in BATCHES]
        print(json.dumps({name: cases[name]}), flush=True)
    for owner in (compiler, *fillers):
        owner.close()
    busy = others.percent()
    print(json.dumps({"others_percent": busy}))
    if not args.record:
        return
    report = {
        **results.header("grammar"),
        "others_percent": busy,
        "vocabulary": vocabulary,
        "cases": cases,
    }
    print(f"recorded {results.write(args.record, report)}")


if __name__ == "__main__":
    main()
