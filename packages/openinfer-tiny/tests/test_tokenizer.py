import json

import pytest

_TEXTS = [
    "Hello! How can I help you today?",
    "  two spaces,\n\n\ttabs and CAPITALS ",
    "don't we've I'm",
    "Grüße, 你好, привет, 🦊🌲",
    '{"name": "python", "arguments": {"code": "12 * 34"}}',
]


@pytest.mark.parametrize("text", _TEXTS)
def test_text_survives_the_round_trip(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_every_byte_has_a_token(tokenizer):
    text = "".join(map(chr, range(1, 256)))
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_every_digit_is_a_token_of_its_own(tokenizer):
    assert len(tokenizer.encode("20481").ids) == 5


def test_ids_fit_the_embedding(tokenizer, config):
    assert tokenizer.get_vocab_size() == config["vocab_size"]


@pytest.mark.parametrize("text", ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
def test_control_tokens_are_single_and_invisible(tokenizer, text):
    assert len(tokenizer.encode(text).ids) == 1
    assert tokenizer.decode(tokenizer.encode(text).ids) == ""


@pytest.mark.parametrize(
    "text",
    ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"],
)
def test_markup_tokens_are_single_and_visible(tokenizer, text):
    assert len(tokenizer.encode(text).ids) == 1
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_end_ids_agree(tokenizer, config, folder):
    generation = json.loads((folder / "generation_config.json").read_text())
    end, end_of_text = map(tokenizer.token_to_id, ("<|im_end|>", "<|endoftext|>"))
    assert generation["eos_token_id"] == [end, end_of_text]
    assert config["eos_token_id"] == end
    assert generation["do_sample"] is True
    assert 0 < generation["temperature"] <= 1
    assert 0 < generation["top_p"] <= 1
