import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from openinfer_nn import CheckpointError, load_weights
from openinfer_qwen3 import Qwen3Config
from openinfer_qwen3.model import Qwen3Model
from openinfer_testing.torch import reference_logits


def _model(folder, **options):
    config = Qwen3Config.from_dict(json.loads((folder / "config.json").read_text()))
    return Qwen3Model(config, device="cpu", dtype=torch.float32, block_size=16, **options)


def test_the_head_shares_the_embedding_only_if_tied(checkpoint):
    tied, untied = _model(checkpoint("mha-d64-tied")), _model(checkpoint("gqa2-d64-untied"))
    assert tied.lm_head.weight is tied.embed_tokens.weight
    assert untied.lm_head.weight is not untied.embed_tokens.weight


def test_what_is_cached(checkpoint):
    spec = _model(checkpoint("gqa2-d64-untied")).cache_spec()
    assert [plane.name for plane in spec.planes] == ["k", "v"]
    assert spec.bytes_per_token == 3 * 2 * 2 * 64 * 4
    assert spec.bytes_per_block(16) == 16 * spec.bytes_per_token


def test_logits_are_in_the_models_dtype_and_none_are_allowed(checkpoint, harness):
    model = harness(checkpoint("gqa4-d128-bf16"), torch.bfloat16).model
    with torch.inference_mode():
        for rows in (0, 1, 5):
            logits = model.logits(torch.zeros(rows, 64, dtype=torch.bfloat16))
            assert logits.shape == (rows, 320)
            assert logits.dtype == torch.bfloat16


def test_the_rotary_table_is_as_long_as_asked(checkpoint):
    folder = checkpoint("mha-d64-tied")
    for options, length in (({}, 512), ({"max_model_len": 99}, 99)):
        rotary = _model(folder, **options).layers[0].attention.rotary
        assert rotary.cos_sin.shape == (length, 64)


def test_every_parameter_is_loaded_once(checkpoint):
    model = _model(checkpoint("odd7-mqa-d64"))
    model.weight_map().check_covers(model.named_parameters())


def test_a_checkpoint_of_another_shape_is_refused(checkpoint):
    model = _model(checkpoint("mha-d64-tied"))
    with pytest.raises(CheckpointError, match=r"shape is \[128, 64\].*asks for \[256, 64\]"):
        load_weights(checkpoint("gqa2-yarn"), model, model.weight_map())


def _with_head(folder, to, change):
    """Copies a tied checkpoint and stores a head beside the embedding."""
    shutil.copytree(folder, to)
    tensors = load_file(to / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + change
    save_file(tensors, to / "model.safetensors")
    return to


def test_a_tied_checkpoint_may_carry_its_head_again_and_no_other(checkpoint, tmp_path, prompts):
    tied = checkpoint("mha-d64-tied")
    same = _with_head(tied, tmp_path / "same", 0.0)
    other = _with_head(tied, tmp_path / "other", 0.5)
    model = _model(same)
    load_weights(same, model, model.weight_map())
    model = _model(other)
    # transformers does not tie a head that differs, so serving it as tied would be wrong.
    logits = [reference_logits(f, prompts[:1], torch.float32)[0] for f in (tied, same, other)]
    assert np.array_equal(logits[0], logits[1])
    assert not np.allclose(logits[0], logits[2], atol=0.1)
    with pytest.raises(CheckpointError, match=r"lm_head.weight.*tie_word_embeddings"):
        load_weights(other, model, model.weight_map())


def test_an_untied_checkpoint_must_carry_its_head(checkpoint):
    headless = _model(checkpoint("gqa2-d64-untied"))
    with pytest.raises(CheckpointError, match=r"lm_head.weight.*missing"):
        load_weights(checkpoint("gqa2-yarn"), headless, headless.weight_map())
