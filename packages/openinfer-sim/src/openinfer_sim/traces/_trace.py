"""Traces as data: sessions of turns whose prompts consist of keyed segments."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from operator import index

import numpy as np

from openinfer_sim.errors import TraceError

_KEYS = 1 << 63


@dataclass(frozen=True, slots=True)
class Segment:
    """Part of a prompt. Segments with the same key begin with the same tokens.

    Attributes:
        key: Id of the content, in [0, 2**63).
        num_tokens: Length in tokens.
    """

    key: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One request.

    Attributes:
        wait_s: Seconds after the end of the previous turn, or after the session's start.
        segments: New part of the prompt, after the history.
        num_output_tokens: Exact number of output tokens.
    """

    wait_s: float
    segments: tuple[Segment, ...]
    num_output_tokens: int

    @property
    def num_new_tokens(self) -> int:
        """Number of prompt tokens that the turn adds to the history."""
        return sum(segment.num_tokens for segment in self.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Turns of one client, one after the other.

    Attributes:
        session_id: Id, unique in the trace.
        start_s: Seconds from the start of the trace.
        tenant: Tenant of every request.
        priority: Priority of every request. Policies that use it run lower numbers first.
        has_history: Whether a prompt begins with all earlier prompts and outputs of the session.
        turns: At least one turn.
    """

    session_id: str
    start_s: float
    tenant: str = ""
    priority: int = 0
    has_history: bool = True
    turns: tuple[Turn, ...]

    def prompt_lengths(self) -> Iterator[int]:
        """Yields the number of prompt tokens of each turn."""
        history = 0
        for turn in self.turns:
            yield history + turn.num_new_tokens
            if self.has_history:
                history += turn.num_new_tokens + turn.num_output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Sessions of all clients.

    Attributes:
        name: Name in reports.
        sessions: At least one session, in any order.
        seed: Seed of the content, in [0, 2**63).

    Raises:
        TraceError: A session has an invalid field. The message names both.
    """

    name: str
    sessions: tuple[Session, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if not self.sessions:
            raise TraceError("a trace needs at least one session")
        names: set[str] = set()
        for session in self.sessions:
            if session.session_id in names:
                raise TraceError(f"two sessions have the session_id {session.session_id!r}")
            names.add(session.session_id)
            if (fault := _fault(session)) is not None:
                raise TraceError(f"session {session.session_id!r}: {fault}")

    @property
    def num_requests(self) -> int:
        """Number of turns of all sessions."""
        return sum(len(session.turns) for session in self.sessions)

    @property
    def max_model_len(self) -> int:
        """Number of prompt and output tokens of the longest request."""
        return max(
            length + turn.num_output_tokens
            for session in self.sessions
            for length, turn in zip(session.prompt_lengths(), session.turns, strict=True)
        )


def check_seed(seed: int) -> None:
    """Checks that a seed is in range.

    Raises:
        TraceError: The seed is not in [0, 2**63).
    """
    if not _is_whole(seed, _KEYS):
        raise TraceError(f"seed must be in [0, 2**63), not {seed}")


def _fault(session: Session) -> str | None:
    """Returns what is invalid in a session, or None.

    A request that an engine would refuse, such as one that is too long, is valid.
    """
    if not 0 <= session.start_s < math.inf:
        return f"start_s must be a number of seconds >= 0, not {session.start_s}"
    if not session.turns:
        return "turns must hold at least one turn"
    for number, turn in enumerate(session.turns):
        if not 0 <= turn.wait_s < math.inf:
            return f"turn {number}: wait_s must be a number of seconds >= 0, not {turn.wait_s}"
        if not _is_whole(turn.num_output_tokens, _KEYS):
            return f"turn {number}: num_output_tokens must be whole, not {turn.num_output_tokens}"
        for segment in turn.segments:
            if not (_is_whole(segment.key, _KEYS) and _is_whole(segment.num_tokens, _KEYS)):
                return f"turn {number}: {segment} must have whole numbers in [0, 2**63)"
    return None


def _is_whole(value: int, end: int) -> bool:
    try:
        return 0 <= index(value) < end
    except TypeError:
        return False


class SegmentTokens:
    """Token ids of segments.

    A segment consists of the first `num_tokens` ids of a random stream that depends on (seed, key).

    Args:
        seed: Seed of the trace.
        vocab_size: Upper bound of the ids, exclusive.
    """

    def __init__(self, seed: int, vocab_size: int) -> None:
        self._seed = seed
        self._vocab_size = vocab_size
        self._shared = lru_cache(maxsize=256)(self._draw)

    def column(self, segments: tuple[Segment, ...]) -> bytes:
        """Returns the tokens of consecutive segments as a u32 column."""
        return b"".join(self._shared(segment.key, segment.num_tokens) for segment in segments)

    def _draw(self, key: int, num_tokens: int) -> bytes:
        bits = np.random.Philox(key=np.array([self._seed, key], np.uint64))
        words: bytes = bits.random_raw(-(-num_tokens // 2)).tobytes()
        ids = np.frombuffer(words, np.uint32)[:num_tokens]
        # Multiply and shift maps 32 bits to [0, vocab_size): the bias is below vocab_size / 2**32.
        scaled = (ids.astype(np.uint64) * np.uint64(self._vocab_size)) >> np.uint64(32)
        return scaled.astype("<u4").tobytes()
