"""The model line of docs/guides/extending.md generates, with random weights and from a file."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from openinfer_contract import GenerateRequest, Sampling, StopRules, pack_ids, unpack_ids
from openinfer_engine import EngineOptions, LaunchSpec, assemble

_ROOT = Path(__file__).parents[1]
_GUIDE = (_ROOT / "docs/guides/extending.md").read_text(encoding="utf-8")
_CONFIG = json.loads(re.findall(r"^```json\n(.*?)^```$", _GUIDE, re.M | re.S)[0])


@pytest.fixture
def line(tmp_path, monkeypatch):
    package = tmp_path / "package" / "my_line"
    package.mkdir(parents=True)
    for name, code in re.findall(
        r"^```python\n# my_line/(\w+\.py)\n(.*?)^```$", _GUIDE, re.M | re.S
    ):
        (package / name).write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(package.parent)
    yield __import__("my_line").MyLine()
    for name in ("my_line", "my_line.model"):
        sys.modules.pop(name, None)


def _weights() -> dict[str, torch.Tensor]:
    width, vocab = _CONFIG["hidden_size"], _CONFIG["vocab_size"]
    square = {f"{name}.weight": torch.zeros(width, width) for name in "qkvo"}
    embedding = torch.randn(vocab, width, generator=torch.Generator().manual_seed(0))
    tensors = {"embed.weight": embedding, "norm.weight": torch.ones(width), **square}
    return {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}


@pytest.mark.parametrize("load_format", ["dummy", "auto"])
def test_the_guides_model_line_generates(line, tmp_path, load_format):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    tiny = _ROOT / "packages/openinfer-tiny/src/openinfer_tiny/checkpoint"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny / name, folder / name)
    if load_format == "auto":
        save_file(_weights(), folder / "model.safetensors")
    options = EngineOptions(
        device="cpu", load_format=load_format, max_num_seqs=2, max_num_batched_tokens=16
    )
    spec = LaunchSpec(model_path=str(folder), model_line="mine", engine=options)
    loop = assemble(line.launch(spec), options)
    ids: list[int] = []
    loop.submit(
        GenerateRequest(
            request_id="a",
            prompt_token_ids=pack_ids([5, 6, 7]),
            sampling=Sampling(temperature=0.0),
            stop=StopRules(max_tokens=3),
        ),
        lambda event: ids.extend(unpack_ids(event.token_ids)),
    )
    while loop.has_work:
        loop.step()
    assert len(ids) == 3
    if load_format == "auto":  # zero projections: the likeliest next token is the token itself
        assert ids == [7, 7, 7]
