"""A process of `cpu.py` for llama.cpp, run by a Python that has llama-cpp-python and gguf.

    _cpu_llama.py bf16|q4_0 FOLDER NUM_THREADS

The GGUF file of random weights is written once into the folder. Its tokenizer is "none": ids go in
and come out. Lines of JSON as in `_cpu_workers.py`.
"""

import json
import os
import sys
import time
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
from _cpu_model import (
    CONFIG,
    DECODE_TOKENS,
    PREFILL_TOKENS,
    PROMPT_TOKENS,
    WEIGHT_STD,
    prompt,
)

_FILE_TYPES = {
    "bf16": gguf.LlamaFileType.MOSTLY_BF16,
    "q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
}


def write(path: Path, kind: str) -> None:
    """Every matrix in `kind`, the tied table included; norms in float32."""
    kind_of = gguf.GGMLQuantizationType[kind.upper()]
    hidden, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    head_dim, num_layers = CONFIG["head_dim"], CONFIG["num_hidden_layers"]
    queries = CONFIG["num_attention_heads"] * head_dim
    keys = CONFIG["num_key_value_heads"] * head_dim
    part = path.with_suffix(".part")
    writer = gguf.GGUFWriter(part, "qwen3")
    writer.add_block_count(num_layers)
    writer.add_context_length(CONFIG["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(CONFIG["num_attention_heads"])
    writer.add_head_count_kv(CONFIG["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(CONFIG["rms_norm_eps"])
    writer.add_rope_freq_base(CONFIG["rope_theta"])
    writer.add_vocab_size(CONFIG["vocab_size"])
    writer.add_tokenizer_model("none")
    writer.add_file_type(_FILE_TYPES[kind])
    rng = np.random.default_rng(0)

    def matrix(name: str, rows: int, columns: int) -> None:
        values = rng.standard_normal((rows, columns), dtype=np.float32) * WEIGHT_STD
        writer.add_tensor(name, gguf.quants.quantize(values, kind_of), raw_dtype=kind_of)

    matrix("token_embd.weight", CONFIG["vocab_size"], hidden)
    writer.add_tensor("output_norm.weight", np.ones(hidden, np.float32))
    for layer in range(num_layers):
        for name, rows, columns in (
            ("attn_q", queries, hidden),
            ("attn_k", keys, hidden),
            ("attn_v", keys, hidden),
            ("attn_output", hidden, queries),
            ("ffn_gate", inner, hidden),
            ("ffn_up", inner, hidden),
            ("ffn_down", hidden, inner),
        ):
            matrix(f"blk.{layer}.{name}.weight", rows, columns)
        sizes = {"attn_norm": hidden, "ffn_norm": hidden}
        sizes |= {"attn_q_norm": head_dim, "attn_k_norm": head_dim}
        for name, size in sizes.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(size, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(path)


def decode(llama: llama_cpp.Llama, seed: int) -> float:
    llama.reset()
    llama.eval(prompt(PROMPT_TOKENS, seed))
    token = llama.sample(temp=0.0)
    begun = time.perf_counter()
    for _ in range(DECODE_TOKENS - 1):
        llama.eval([token])
        token = llama.sample(temp=0.0)
    return (DECODE_TOKENS - 1) / (time.perf_counter() - begun)


def prefill(llama: llama_cpp.Llama, seed: int) -> float:
    llama.reset()
    begun = time.perf_counter()
    llama.eval(prompt(PREFILL_TOKENS, seed))
    llama.sample(temp=0.0)
    return PREFILL_TOKENS / (time.perf_counter() - begun)


def main() -> None:
    kind, folder, num_threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    # The library's own output must not mix with the lines of JSON.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    path = folder / f"qwen3-0.6b-{kind}.gguf"
    if not path.exists():
        write(path, kind)
    llama = llama_cpp.Llama(
        model_path=str(path),
        n_ctx=4 * PREFILL_TOKENS,
        n_batch=PREFILL_TOKENS,
        n_ubatch=PREFILL_TOKENS,
        n_threads=num_threads,
        n_threads_batch=num_threads,
        verbose=False,
    )
    runs = {"decode": decode, "prefill": prefill}
    print("{}", file=answers, flush=True)
    for seed, line in enumerate(sys.stdin):
        run = json.loads(line)["run"]
        if run == "versions":
            result = {"llama-cpp-python": llama_cpp.__version__}
        else:
            result = runs[run](llama, seed)
        print(json.dumps(result), file=answers, flush=True)


if __name__ == "__main__":
    main()
