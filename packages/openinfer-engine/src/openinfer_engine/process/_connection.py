"""One client of the engine process: messages received, and output not yet sent.

Output is not queued per event. Tokens that a slow client has not read merge per stream, so the
backlog is never larger than the output itself. One frame at a time is cut from the backlog; the
next one is cut when that frame has been sent. If a client submits requests without reading their
output, the engine stops reading its socket.
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
"""Approximate upper bound of the backlog's bytes in one frame."""


class Stream:
    """The sink of one request that came over a connection."""

    __slots__ = ("_connection", "_stream_id")

    def __init__(self, connection: "Connection", stream_id: int) -> None:
        self._connection = connection
        self._stream_id = stream_id

    def __call__(self, event: TokenEvent, /) -> None:
        """Adds the event to the client's backlog."""
        self._connection.push(self._stream_id, event)


class Connection:
    """A non-blocking socket with its merged backlog. Used by the step thread.

    Attributes:
        sock: the socket; closed by `close`.
        is_parent: whether this is the inherited socket; the engine ends when it closes.
        request_ids: ids of the live requests, by stream id.
        blocked_since: when the client stopped reading; None while it reads.
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
        # Allocated once: allocating a megabyte takes ten times as long as receiving a request.
        self._received = memoryview(bytearray(_RECV_BYTES))
        self._frames = ClientFrameReader()
        self._has_greeted = False
        self._unsent = memoryview(encode_frame(Hello(peer=info.engine, info=info)))
        self._replies: list[EngineMessage] = []
        self._rows: dict[int, TokenEvent] = {}
        self._load: Load | None = None
        self._is_slow = False

    @property
    def is_flooded(self) -> bool:
        """Whether so much output waits that no further requests should be read from this client."""
        return len(self._rows) > _MAX_UNREAD_ROWS

    @property
    def has_output(self) -> bool:
        """Whether anything waits to be sent."""
        return bool(self._unsent or self._replies or self._rows or self._load)

    def receive(self) -> list[ClientMessage] | None:
        """Returns the messages that have arrived, from at most a megabyte; None at the end.

        Raises:
            WireError: the client does not speak the contract.
            ContractVersionError: the client speaks another version of it.
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
                raise WireError("the first message must be Hello")
            self._has_greeted = True
        return messages

    def push(self, stream_id: int, event: TokenEvent) -> None:
        """Adds one stream's event to the backlog."""
        earlier = self._rows.get(stream_id)
        self._rows[stream_id] = event if earlier is None else earlier.merged(event)
        if event.end is not None:
            self.request_ids.pop(stream_id, None)

    def reply(self, call_id: int, result: CommandResult) -> None:
        """Queues the result of a command."""
        self._replies.append(ControlResult(call_id, result))

    def report_drained(self) -> None:
        """Queues the reply to `Drain`."""
        self._replies.append(Drained())

    def report_load(self, load: Load) -> None:
        """Queues the latest load, in place of an older one that was not sent."""
        self._load = load

    def flush(self, step_id: int, now: float) -> bool:
        """Sends as much as the client takes. Returns False to disconnect it.

        A client is disconnected if its socket failed, or if it sends commands without reading the
        results.
        """
        if len(self._replies) > _MAX_REPLIES:
            return False
        try:
            while self._unsent or self._next_frames(step_id):
                sent = self.sock.send(self._unsent)
                self._unsent = self._unsent[sent:]
                self.blocked_since = None
            self._is_slow = False
        except BlockingIOError:
            self._is_slow = True
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
        """Returns the backlog; at most about one frame of it, if the client is slow."""
        rows, self._rows = self._rows, {}
        if not self._is_slow:
            return rows
        num_bytes = 0
        for num, event in enumerate(rows.values(), 1):
            num_bytes += _num_bytes(event)
            if num_bytes >= _FRAME_BYTES:
                self._rows = dict(islice(rows.items(), num, None))
                return dict(islice(rows.items(), num))
        return rows


def _num_bytes(event: TokenEvent) -> int:
    """Returns the size of an event's columns."""
    prompt = event.prompt_logprobs
    columns = (event.logprobs, prompt.logprobs if prompt is not None else None)
    return len(event.token_ids) + sum(
        len(c.sampled) + len(c.ranks) + len(c.top_ids) + len(c.top) + len(c.by_id)
        for c in columns
        if c is not None
    )
