"""What clients do, as data: sessions of turns whose prompts are made of keyed segments."""

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
    """A piece of prompt. Segments of the same key begin with the same tokens.

    Attributes:
        key: names the content, in [0, 2**63).
        num_tokens: length.
    """

    key: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One request.

    Attributes:
        wait_s: seconds after the end of the turn before, or after the session's start.
        segments: what is new in the prompt; history comes before it.
        num_output_tokens: tokens generated, exactly.
    """

    wait_s: float
    segments: tuple[Segment, ...]
    num_output_tokens: int

    @property
    def num_new_tokens(self) -> int:
        """Prompt tokens that the turn adds to the history."""
        return sum(segment.num_tokens for segment in self.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Turns one after the other.

    Attributes:
        session_id: unique in the trace.
        start_s: seconds from the trace's start.
        tenant: whose it is.
        priority: of every request; lower runs earlier, under policies that look at it.
        has_history: whether a turn's prompt begins with all that came before, answers included.
        turns: at least one.
    """

    session_id: str
    start_s: float
    tenant: str = ""
    priority: int = 0
    has_history: bool = True
    turns: tuple[Turn, ...]

    def prompt_lengths(self) -> Iterator[int]:
        """Prompt tokens of each turn."""
        history = 0
        for turn in self.turns:
            yield history + turn.num_new_tokens
            if self.has_history:
                history += turn.num_new_tokens + turn.num_output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Everything that clients will do.

    Attributes:
        name: what the report calls it.
        sessions: at least one, in any order.
        seed: of the content, in [0, 2**63).

    Raises:
        TraceError: naming the session and its field that makes no sense.
    """

    name: str
    sessions: tuple[Session, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if not self.sessions:
            raise TraceError("a trace needs a session")
        names: set[str] = set()
        for session in self.sessions:
            if session.session_id in names:
                raise TraceError(f"two sessions have the session_id {session.session_id!r}")
            names.add(session.session_id)
            if (fault := _fault(session)) is not None:
                raise TraceError(f"session {session.session_id!r}: {fault}")

    @property
    def num_requests(self) -> int:
        """Turns of all sessions."""
        return sum(len(session.turns) for session in self.sessions)

    @property
    def max_model_len(self) -> int:
        """Prompt and output tokens of the longest request."""
        return max(
            length + turn.num_output_tokens
            for session in self.sessions
            for length, turn in zip(session.prompt_lengths(), session.turns, strict=True)
        )


def check_seed(seed: int) -> None:
    """Looks whether everything that is drawn can be drawn by it.

    Raises:
        TraceError: it is not in [0, 2**63).
    """
    if not _is_whole(seed, _KEYS):
        raise TraceError(f"seed must be in [0, 2**63), not {seed}")


def _fault(session: Session) -> str | None:
    """What makes no sense; a request that an engine refuses does."""
    if not 0 <= session.start_s < math.inf:
        return f"start_s must be a number of seconds >= 0, not {session.start_s}"
    if not session.turns:
        return "turns has none"
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
    """Token ids of segments: a function of (seed, key), the first `num_tokens` of them.

    Args:
        seed: of the trace.
        vocab_size: ids are below it.
    """

    def __init__(self, seed: int, vocab_size: int) -> None:
        self._seed = seed
        self._vocab_size = vocab_size
        self._shared = lru_cache(maxsize=256)(self._draw)

    def column(self, segments: tuple[Segment, ...]) -> bytes:
        """The segments one after the other, as a u32 column."""
        return b"".join(self._shared(segment.key, segment.num_tokens) for segment in segments)

    def _draw(self, key: int, num_tokens: int) -> bytes:
        bits = np.random.Philox(key=np.array([self._seed, key], np.uint64))
        words: bytes = bits.random_raw(-(-num_tokens // 2)).tobytes()
        ids = np.frombuffer(words, np.uint32)[:num_tokens]
        # Drawn by multiplication: the bias is below vocab_size / 2**32.
        scaled = (ids.astype(np.uint64) * np.uint64(self._vocab_size)) >> np.uint64(32)
        return scaled.astype("<u4").tobytes()
