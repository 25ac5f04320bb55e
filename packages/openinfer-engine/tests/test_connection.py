import socket

from openinfer_contract import (
    EngineFrameReader,
    StepEvents,
    TokenEvent,
    TokenLogprobs,
    pack_floats,
    pack_ids,
)
from openinfer_engine import EngineOptions, build_engine_info
from openinfer_engine.process._connection import Connection
from openinfer_testing import ZeroCostExecutor

NUM_TOKENS = 20_000


def event(token: int) -> TokenEvent:
    ids, ones = pack_ids([token] * NUM_TOKENS), pack_floats([1.0] * NUM_TOKENS)
    logprobs = TokenLogprobs(
        sampled=ones, ranks=ids, num_top=2, top_ids=2 * ids, top=2 * ones, by_id=b""
    )
    return TokenEvent(token_ids=ids, logprobs=logprobs)


def test_a_large_backlog_leaves_in_several_frames() -> None:
    ours, theirs = socket.socketpair()
    info = build_engine_info(ZeroCostExecutor().info, EngineOptions())
    connection = Connection(ours, info)
    with theirs:
        for stream_id in range(60):
            connection.push(stream_id, event(stream_id))
            assert connection.flush(stream_id, 0.0)
        assert connection.blocked_since is not None
        frames: list[StepEvents] = []
        reader, theirs_num_bytes = EngineFrameReader(), 0
        theirs.settimeout(0)
        while connection.has_output:
            assert connection.flush(60, 0.0)
            data = theirs.recv(1 << 22)
            theirs_num_bytes += len(data)
            frames += [m for m in reader.feed(data) if isinstance(m, StepEvents)]
        try:
            while data := theirs.recv(1 << 22):
                frames += [m for m in reader.feed(data) if isinstance(m, StepEvents)]
        except BlockingIOError:
            pass
        connection.close()
    rows = [row for frame in frames for row in frame.rows()]
    assert [stream_id for stream_id, _ in rows] == list(range(60))
    assert all(got == event(stream_id) for stream_id, got in rows)
    assert max(len(frame.token_ids) for frame in frames) <= 4 * NUM_TOKENS * 12
