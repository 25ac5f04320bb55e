"""Tokens at the borders of messages, found for templates of every family."""

import pytest

from openinfer_text import ChatTemplate
from openinfer_text.templates._turn_tokens import learn_turn_tokens

ADDED = (
    *("<|im_start|>", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>"),
    *("<|im_middle|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>"),
    *("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", "<｜tool▁output▁begin｜>"),
    *("<｜tool▁output▁end｜>", "<｜tool▁calls▁end｜>", "[INST]", "[/INST]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "</s>", "<start_of_turn>", "<end_of_turn>", "<|start|>", "<|end|>"),
)
WANTED = {
    "chatml": {"<|im_start|>"},
    "coder": {"<|im_start|>"},
    "kimi": {"<|im_user|>", "<|im_assistant|>", "<|im_system|>"},
    "deepseek": {
        *("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
        *("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
    },
    "inst": {"[INST]", "[/INST]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "</s>"},
    "turns": {"<start_of_turn>"},
    "channels": {"<|start|>"},
}


@pytest.mark.parametrize("name", WANTED)
def test_message_borders_are_found(name, templates):
    special_tokens = {"bos_token": "", "eos_token": "</s>"}
    found = learn_turn_tokens(ChatTemplate(templates[name], special_tokens=special_tokens), ADDED)
    assert found.openers | found.closers == WANTED[name]


def test_templates_without_added_tokens_have_no_borders(templates):
    found = learn_turn_tokens(ChatTemplate(templates["chatml"]), ())
    assert found.openers | found.closers == set()
