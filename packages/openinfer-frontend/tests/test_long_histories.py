"""Conversations of very many messages take linear time, on the event loop too."""

import time

import pytest

from openinfer_frontend.generation._text_work import _without_late_system
from openinfer_frontend.protocols.responses._responses_request import ResponsesRequest

TEXT = "x" * 200
SYSTEM = {"role": "system", "content": TEXT}
THOUGHT = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": TEXT}]}
USER = {"role": "user", "content": "Hi"}


def seconds(work):
    begun = time.process_time()
    work()
    return time.process_time() - begun


@pytest.mark.timed
@pytest.mark.parametrize("item", [SYSTEM, THOUGHT], ids=["system", "reasoning"])
def test_items_that_become_one_message(item):
    request = ResponsesRequest(input=[item] * 20_000 + [USER])
    assert len(request.conversation().messages) == 2
    assert seconds(request.conversation) < 1


@pytest.mark.parametrize("item", [SYSTEM, THOUGHT], ids=["system", "reasoning"])
def test_the_texts_of_items_are_joined(item):
    messages = ResponsesRequest(input=[item, item, USER]).conversation().messages
    key, between = ("content", "\n\n") if item is SYSTEM else ("reasoning_content", "\n")
    assert messages[0][key] == between.join([TEXT, TEXT])


@pytest.mark.timed
@pytest.mark.parametrize(
    "messages",
    [
        [SYSTEM] * 20_000,
        [SYSTEM] * 20_000 + [USER] * 20_000,
        [USER] + [SYSTEM] * 20_000 + [USER] * 20_000,
    ],
    ids=["leading", "leading-user", "late"],
)
def test_system_messages_are_placed(messages):
    assert seconds(lambda: _without_late_system(messages)) < 0.5


ASSISTANT = {"role": "assistant", "content": "Hm"}


@pytest.mark.parametrize(
    ("roles", "placed"),
    [
        ("ss", "ss"),
        ("sus", "su"),
        ("usu", "u"),
        ("uasu", "uau"),
        ("uassuu", "uauu"),
        ("uas", "uau"),
        ("uasa", "uaua"),
        ("uu", "uu"),
    ],
)
def test_turns_alternate_where_the_clients_do(roles, placed):
    known = {"s": SYSTEM, "u": USER | {"name": "me"}, "a": ASSISTANT}
    found = _without_late_system([known[role] for role in roles])
    assert "".join(message["role"][0] for message in found) == placed


def test_a_late_system_message_keeps_its_place_in_the_turn():
    *_, turn = _without_late_system([USER, ASSISTANT, SYSTEM, USER | {"name": "me"}])
    texts = [part["text"] for part in turn["content"]]
    assert (turn["role"], turn["name"], texts) == ("user", "me", [TEXT, "Hi"])
