"""Token positions at which messages end in a prompt: hints for the prefix cache.

When a template is loaded, small chats are rendered with and without their last messages. The
difference shows the added token that opens the next message (`<|im_start|>`, `<|User|>`) or closes
a message (`</s>`). Prompts are then searched for these ids. Templates without such tokens have no
hints.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from openinfer_contract import num_ids
from openinfer_text.errors import TextError
from openinfer_text.templates._chat_template import ChatTemplate
from openinfer_text.tokens._id_search import find_id
from openinfer_text.tokens._segment_cache import literal_pattern

_CALLS = [
    {"id": f"call_{n}", "type": "function", "function": {"name": "fruit", "arguments": "{}"}}
    for n in range(2)
]
_CHATS: tuple[tuple[dict[str, Any], ...], ...] = (
    (
        {"role": "user", "content": "One red apple."},
        {"role": "assistant", "content": "Two green pears."},
        {"role": "user", "content": "Three blue plums."},
    ),
    # Not every template accepts tool messages. A template that does may open them differently.
    (
        {"role": "system", "content": "Four white figs."},
        {"role": "user", "content": "Five black grapes."},
        {"role": "assistant", "content": "", "tool_calls": _CALLS},
        {"role": "tool", "content": "Six.", "tool_call_id": "call_0"},
        {"role": "tool", "content": "Seven.", "tool_call_id": "call_1"},
        {"role": "assistant", "content": "Eight."},
    ),
)


@dataclass(frozen=True, slots=True)
class TurnTokens:
    """Added tokens at the border of two messages."""

    openers: frozenset[str] = frozenset()
    closers: frozenset[str] = frozenset()


def learn_turn_tokens(template: ChatTemplate, added_tokens: Collection[str]) -> TurnTokens:
    """Returns the border tokens of a template; none if borders are plain text."""
    if not added_tokens:
        return TurnTokens()
    pattern = re.compile(literal_pattern(added_tokens))
    openers: set[str] = set()
    closers: set[str] = set()
    for chat in _CHATS:
        try:
            full = template.render(chat, add_generation_prompt=True)
            starts = [template.render(chat[:count]) for count in range(1, len(chat) + 1)]
        except TextError:
            # The template refuses this chat; the other chats may still show its tokens.
            continue
        for start in starts:
            if not full.startswith(start):
                continue
            opener = pattern.match(full, len(start))
            if opener is not None:
                openers.add(opener.group())
                continue
            closer = max((t for t in added_tokens if start.endswith(t)), key=len, default=None)
            if closer is not None:
                closers.add(closer)
    return TurnTokens(frozenset(openers), frozenset(closers))


def find_boundaries(
    token_ids: bytes, *, opener_ids: Collection[int], closer_ids: Collection[int], start: int
) -> tuple[int, ...]:
    """Returns positions between `start` and the end at which a message ends, ascending."""
    found = {at for token_id in opener_ids for at in find_id(token_ids, token_id)}
    found |= {at + 1 for token_id in closer_ids for at in find_id(token_ids, token_id)}
    end = num_ids(token_ids)
    return tuple(sorted(at for at in found if start < at < end))
