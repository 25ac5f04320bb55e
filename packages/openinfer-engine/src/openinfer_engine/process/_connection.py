"""One client of the engine process: what it sent, and what it has not read yet.

Output never queues per event: tokens that a slow reader has not taken merge per stream, so it
costs at most its own output. One frame at a time is cut from that backlog; the next one is cut
when the frame has left. A peer that asks on and on without reading is not read any more either.
"""

import socket
from itertools import islice

from openinfer_contract import (
    ClientFrameReader,
    ClientMessage,
    CommandResult,
    ControlResult,
    Drained,
    EngineInfo,
    EngineMessage,
    Hello,
    Load,
    LoadReport,
    StepEvents,
    TokenEvent,
    WireError,
    encode_frame,
)

_RECV_BYTES = 1 << 20
_MAX_REPLIES = 1024
_MAX_UNREAD_ROWS = 16_384
_FRAME_BYTES = 4 << 20
"""About how much of a backlog goes into one frame."""


class Stream:
    """The sink of one request that came over a connection."""

    __slots__ = ("_connection", "_stream_id")

    def __init__(self, connection: "Connection", stream_id: int) -> None:
        self._connection = connection
        self._stream_id = stream_id

    def __call__(self, event: TokenEvent, /) -> None:
        """Adds the event to what the client has not read."""
        self._connection.push(self._stream_id, event)


class Connection:
    """A non-blocking socket with its merged backlog. Belongs to the step thread.

    Attributes:
        sock: the socket; closed by `close`.
        is_parent: whether this is the inherited socket, whose end is the engine's.
        request_ids: of the live streams, by stream id.
        blocked_since: when the peer stopped taking output, or None while it takes it.
    """

    def __init__(self, sock: socket.socket, info: EngineInfo, *, is_parent: bool = False) -> None:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.is_parent = is_parent
        self.request_ids: dict[int, str] = {}
        self.blocked_since: float | None = None
        self._info = info
        # Kept: to make room for a megabyte takes ten times as long as to receive a request.
        self._received = memoryview(bytearray(_RECV_BYTES))
        self._frames = ClientFrameReader()
        self._has_greeted = False
        self._unsent = memoryview(encode_frame(Hello(peer=info.engine, info=info)))
        self._replies: list[EngineMessage] = []
        self._rows: dict[int, TokenEvent] = {}
        self._load: Load | None = None
        self._is_behind = False

    @property
    def is_flooded(self) -> bool:
        """Whether so many streams have unread events that no further request should be read."""
        return len(self._rows) > _MAX_UNREAD_ROWS

    @property
    def has_output(self) -> bool:
        """Whether anything waits to be sent."""
        return bool(self._unsent or self._replies or self._rows or self._load)

    def receive(self) -> list[ClientMessage] | None:
        """The messages that have arrived, at most a megabyte of them; None at the end.

        Raises:
            WireError: the peer does not speak the contract.
            ContractVersionError: it speaks another version of it.
        """
        try:
            num_bytes = self.sock.recv_into(self._received)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not num_bytes:
            return None
        messages = list(self._frames.feed(self._received[:num_bytes]))
        if messages and not self._has_greeted:
            if not isinstance(messages.pop(0), Hello):
                raise WireError("the first message was no Hello")
            self._has_greeted = True
        return messages

    def push(self, stream_id: int, event: TokenEvent) -> None:
        """Adds one row's events to the backlog."""
        earlier = self._rows.get(stream_id)
        self._rows[stream_id] = event if earlier is None else earlier.merged(event)
        if event.end is not None:
            self.request_ids.pop(stream_id, None)

    def reply(self, call_id: int, result: CommandResult) -> None:
        """Answers a command."""
        self._replies.append(ControlResult(call_id, result))

    def report_drained(self) -> None:
        """Answers `Drain`."""
        self._replies.append(Drained())

    def report_load(self, load: Load) -> None:
        """Leaves the latest load to be sent; an older unsent one is forgotten."""
        self._load = load

    def flush(self, step_id: int, now: float) -> bool:
        """Sends what the peer takes. False if it is gone, or asks without reading the answers."""
        if len(self._replies) > _MAX_REPLIES:
            return False
        try:
            while self._unsent or self._next_frames(step_id):
                sent = self.sock.send(self._unsent)
                self._unsent = self._unsent[sent:]
                self.blocked_since = None
            self._is_behind = False
        except BlockingIOError:
            self._is_behind = True
            if self.blocked_since is None:
                self.blocked_since = now
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Closes the socket."""
        self.sock.close()

    def _next_frames(self, step_id: int) -> bool:
        frames: list[bytes] = []
        if self._rows:
            version = self._info.weights_version
            events = StepEvents.from_rows(step_id, version, self._take_rows().items())
            frames.append(encode_frame(events))
        if self._load is not None:
            frames.append(encode_frame(LoadReport(self._load)))
            self._load = None
        frames.extend(encode_frame(reply) for reply in self._replies)
        self._replies.clear()
        self._unsent = memoryview(frames[0] if len(frames) == 1 else b"".join(frames))
        return bool(frames)

    def _take_rows(self) -> dict[int, TokenEvent]:
        """The backlog; where it may have grown over many steps, as much as makes one frame."""
        rows, self._rows = self._rows, {}
        if not self._is_behind:
            return rows
        num_bytes = 0
        for num, event in enumerate(rows.values(), 1):
            num_bytes += _num_bytes(event)
            if num_bytes >= _FRAME_BYTES:
                self._rows = dict(islice(rows.items(), num, None))
                return dict(islice(rows.items(), num))
        return rows


def _num_bytes(event: TokenEvent) -> int:
    """The size of an event's columns."""
    prompt = event.prompt_logprobs
    columns = (event.logprobs, prompt.logprobs if prompt is not None else None)
    return len(event.token_ids) + sum(
        len(c.sampled) + len(c.ranks) + len(c.top_ids) + len(c.top) + len(c.by_id)
        for c in columns
        if c is not None
    )
