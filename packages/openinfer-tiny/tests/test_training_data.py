import json
from itertools import islice
from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("jinja2")


@pytest.fixture(scope="module")
def dataset(training, tokenizer):
    from tiny_training.dataset import Dataset

    return Dataset(tokenizer, "train", seed="1", batch_tokens=2048)


def test_the_shipped_template_is_the_trained_one(training, folder):
    trained = Path(training.__path__[0], "chat_template.jinja").read_text()
    shipped = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    assert shipped == trained


def test_only_the_assistants_words_weigh_fully(dataset, tokenizer):
    text = (
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi there!<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\nGoodbye!<|im_end|>\n"
    )
    ids = tokenizer.encode(text).ids
    weights = dataset.weigh(ids)
    heavy = [token for token, weight in zip(ids, weights, strict=True) if weight == 1.0]
    assert tokenizer.decode(heavy, skip_special_tokens=False) == (
        "Hi there!<|im_end|>Goodbye!<|im_end|>"
    )


def test_a_tools_response_weighs_nothing(dataset, tokenizer):
    text = (
        "<|im_start|>assistant\n<tool_call>\n{}\n</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n408\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nIt is 408.<|im_end|>\n"
    )
    ids = tokenizer.encode(text).ids
    weighed = list(zip(ids, dataset.weigh(ids), strict=True))
    free = tokenizer.decode([token for token, weight in weighed if weight == 0.0])
    heavy = tokenizer.decode([token for token, weight in weighed if weight == 1.0])
    assert free == "\n408\n</tool_response>"
    assert heavy == "<tool_call>\n{}\n</tool_call>It is 408."


def test_batches_keep_to_the_budget_and_weigh_no_padding(dataset, tokenizer):
    from tiny_training.dataset import MAX_TOKENS

    end_of_text = tokenizer.token_to_id("<|endoftext|>")
    for token_ids, weights in islice(dataset, 20):
        assert token_ids.shape == weights.shape
        assert token_ids.size <= 2048
        for row, row_weights in zip(token_ids, weights, strict=True):
            length = row_weights.nonzero()[0].max() + 1
            # A talk cut at the longest width may end in a tool response, which has weight 0.
            if len(row) == MAX_TOKENS:
                continue
            assert (row[length:] == end_of_text).all()
        assert (weights[:, 0] > 0).all()


def test_the_stream_is_seeded(training, tokenizer):
    from tiny_training.dataset import Dataset

    one, other = (
        next(iter(Dataset(tokenizer, "held-out", seed="2", batch_tokens=512))) for _ in range(2)
    )
    assert one[0].tolist() == other[0].tolist()
    assert one[1].tolist() == other[1].tolist()
