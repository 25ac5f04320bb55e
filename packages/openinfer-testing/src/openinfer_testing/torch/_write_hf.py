"""Random checkpoints written by Hugging Face's own classes.

transformers builds the model and saves it, so names and layouts of tensors are those of published
checkpoints, whatever the architecture.
"""

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from openinfer_testing.torch._reference import reference_logits

MIN_LOGIT_STD = 2.0
_SCALE_STD = 0.3
_NUM_JUDGED_TOKENS = 32


def write_hf(
    config_class: type[PretrainedConfig],
    overrides: Mapping[str, Any],
    init_std: float,
    folder: Path,
    *,
    seed: int = 0,
    device: str = "cpu",
    max_shard_bytes: int | None = None,
) -> Path:
    """Writes a checkpoint with random weights of a large standard deviation; returns the folder.

    With transformers' standard deviation of 0.02 all logits are nearly equal, and a model with a
    broken attention would pass any comparison. A deviation of 0.2 to 0.3 suits tiny shapes.

    Args:
        config_class: Configuration class of an architecture that is a causal language model.
        overrides: Fields of config.json that differ from the class's defaults.
        init_std: Standard deviation of matrices and biases; norm scales are drawn around 1.
        folder: Folder of config.json and the weights; created if it does not exist.
        seed: Seed of the draw. CPU and GPU draw different numbers.
        device: Device that draws the weights and computes the logits for the check. Use a GPU for
            large models.
        max_shard_bytes: Size of a weight file; a larger model has several and an index.

    Raises:
        ValueError: The logits spread too little for a comparison to mean anything.
    """
    config = config_class.from_dict(dict(overrides))
    dtype = config.dtype or torch.float32
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        _draw(name, parameter.data, init_std, seed)
    model.save_pretrained(folder, max_shard_size=max_shard_bytes or "1TB")
    _check_spread(folder, config.get_text_config().vocab_size, seed, device)
    return folder


def _draw(name: str, parameter: torch.Tensor, init_std: float, seed: int) -> None:
    # One generator per tensor name, so that adding a tensor to the model changes no other tensor.
    generator = torch.Generator(parameter.device)
    generator.manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
    drawn = torch.randn(parameter.shape, generator=generator, device=parameter.device)
    is_scale = parameter.dim() == 1 and not name.endswith("bias")
    parameter.copy_(1.0 + _SCALE_STD * drawn if is_scale else init_std * drawn)


def _check_spread(folder: Path, vocab_size: int, seed: int, device: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    token_ids = torch.randint(vocab_size, (_NUM_JUDGED_TOKENS,), generator=generator).tolist()
    (logits,) = reference_logits(folder, [token_ids], torch.float32, device)
    spread = float(logits.std())
    if not spread >= MIN_LOGIT_STD:
        raise ValueError(
            f"{folder}: logits have a standard deviation of {spread:.2f}, below {MIN_LOGIT_STD}; "
            "draw the weights wider"
        )
