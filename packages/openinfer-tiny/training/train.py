"""Training of the model and writing of the checkpoint folder."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import Qwen3Config, Qwen3ForCausalLM

from .pins import commit, libraries, talks_digest, text_digest
from .stream import training_batches
from .tokenizer import END, END_OF_TEXT, VOCAB_SIZE, save_tokenizer, train_tokenizer

MAX_POSITIONS = 2048
_REPORT_STEPS = 200


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All parameters of the training except the text."""

    seed: int = 20
    steps: int = 6000
    batch_tokens: int = 65_536
    num_workers: int = 12
    peak_lr: float = 2e-3
    final_lr_share: float = 0.01
    warmup_steps: int = 300
    weight_decay: float = 0.1
    max_grad_norm: float = 1.0


def build(folder: Path, recipe: Recipe, device: torch.device) -> None:
    """Trains tokenizer and model by `recipe` on `device` and writes them to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(recipe.seed)
    save_tokenizer(tokenizer, folder, MAX_POSITIONS)
    torch.manual_seed(recipe.seed)
    config = _config(tokenizer)
    model = Qwen3ForCausalLM(Qwen3Config(**config)).float().to(device)
    started = time.monotonic()
    with training_batches(
        folder / "tokenizer.json", recipe.seed, recipe.batch_tokens, recipe.num_workers, device
    ) as batches:
        num_tokens = _train(model, batches, recipe)
    _save(model, config, folder)
    wall_time_s = round(time.monotonic() - started)
    record = {
        **asdict(recipe),
        "num_tokens": num_tokens,
        "wall_time_s": wall_time_s,
        "text_digest": text_digest(),
        "talks_digest": talks_digest(recipe.seed),
        "commit": commit(),
        "libraries": libraries(),
    }
    (folder / "recipe.json").write_text(json.dumps(record, indent=2) + "\n")


def _config(tokenizer: Tokenizer) -> dict[str, object]:
    """Returns config.json in the form of published Qwen3 checkpoints."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "max_position_embeddings": MAX_POSITIONS,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "use_sliding_window": False,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "bos_token_id": None,
        "eos_token_id": tokenizer.token_to_id(END),
        "pad_token_id": tokenizer.token_to_id(END_OF_TEXT),
        "torch_dtype": "bfloat16",
        "use_cache": True,
    }


def _train(
    model: Qwen3ForCausalLM,
    batches: Iterator[tuple[torch.Tensor, torch.Tensor]],
    recipe: Recipe,
) -> int:
    """Trains in place; returns the number of tokens seen, padding included."""
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    plain = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": recipe.weight_decay},
            {"params": plain, "weight_decay": 0.0},
        ],
        betas=(0.9, 0.95),
        fused=True,
    )
    model.train()
    started, seen = time.monotonic(), 0
    total = torch.zeros((), device=model.device)
    for step, (token_ids, weights) in zip(range(recipe.steps), batches, strict=False):
        for group in optimizer.param_groups:
            group["lr"] = _learning_rate(step, recipe)
        loss = weighted_loss(model, token_ids, weights)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seen += token_ids.numel()
        total += loss.detach()
        if (step + 1) % _REPORT_STEPS == 0:
            average, elapsed = total.item() / _REPORT_STEPS, time.monotonic() - started
            total.zero_()
            print(
                f"step {step + 1} loss {average:.3f} {elapsed:.0f} s {seen / elapsed:.0f} tokens/s",
                flush=True,
            )
    return seen


def weighted_loss(
    model: Qwen3ForCausalLM, token_ids: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Returns the mean next-token loss of `token_ids [B, T]`, weighted by `weights [B, T]`."""
    with torch.autocast(token_ids.device.type, dtype=torch.bfloat16):
        logits = model(input_ids=token_ids[:, :-1], use_cache=False).logits
    losses = cross_entropy(
        logits.float().flatten(0, 1), token_ids[:, 1:].flatten(), reduction="none"
    )
    targets = weights[:, 1:].flatten()
    return (losses * targets).sum() / targets.sum()


def _learning_rate(step: int, recipe: Recipe) -> float:
    if step < recipe.warmup_steps:
        return recipe.peak_lr * (step + 1) / recipe.warmup_steps
    progress = (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return recipe.peak_lr * (recipe.final_lr_share + (1 - recipe.final_lr_share) * cosine)


def _save(model: Qwen3ForCausalLM, config: dict[str, object], folder: Path) -> None:
    weights = model.to("cpu", torch.bfloat16).state_dict()
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    generation = {
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.9,
        "eos_token_id": [config["eos_token_id"], config["pad_token_id"]],
        "pad_token_id": config["pad_token_id"],
    }
    for name, content in (("config.json", config), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
