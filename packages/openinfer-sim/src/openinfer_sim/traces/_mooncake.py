"""Reader of traces in Mooncake's published format: one JSON object a line, prompts as block hashes.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, ...]}

`timestamp` is in milliseconds. Each hash id stands for a block of 512 prompt tokens, the last one
for the rest of the prompt. Equal ids stand for equal blocks after equal prefixes.
"""

from pathlib import Path

import msgspec

from openinfer_sim.errors import TraceError
from openinfer_sim.traces._trace import Segment, Session, Trace, Turn

TOKENS_PER_HASH = 512


class _Record(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]
    tenant: str = ""
    priority: int = 0


def read_mooncake(
    path: str | Path, *, speed: float = 1.0, limit: int | None = None, seed: int = 0
) -> Trace:
    """Reads a trace.

    Args:
        path: Path of the file. The fields `tenant` and `priority` are optional; unknown fields are
            ignored.
        speed: Factor by which requests arrive faster than recorded.
        limit: Upper bound of requests to read.
        seed: Seed of the content.

    Raises:
        TraceError: The file or a line is invalid. The message names the line.
    """
    if not speed > 0:
        raise TraceError(f"speed must be positive, not {speed}")
    if limit is not None and limit < 1:
        raise TraceError(f"limit must be at least 1, not {limit}")
    decoder = msgspec.json.Decoder(_Record)
    sessions: list[Session] = []
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise TraceError(f"trace {path}: {error.strerror or error}") from error
    for number, line in enumerate(lines, 1):
        if limit is not None and len(sessions) == limit:
            break
        if not line.strip():
            continue
        try:
            record = decoder.decode(line)
            sessions.append(_session(record, len(sessions), speed))
        except (msgspec.DecodeError, ValueError) as error:
            raise TraceError(f"trace {path}, line {number}: {error}") from error
    if not sessions:
        raise TraceError(f"trace {path} has no request")
    return Trace(name=f"mooncake {Path(path).name}", sessions=tuple(sessions), seed=seed)


def _session(record: _Record, index: int, speed: float) -> Session:
    num_blocks = -(-record.input_length // TOKENS_PER_HASH)
    if record.input_length < 1 or record.output_length < 1:
        raise ValueError("input_length and output_length must be at least 1")
    if not 0 <= record.timestamp < 2**53:
        raise ValueError("timestamp must be milliseconds from the trace's start")
    if len(record.hash_ids) != num_blocks:
        raise ValueError(
            f"{record.input_length} tokens are {num_blocks} blocks of {TOKENS_PER_HASH}, "
            f"hash_ids has {len(record.hash_ids)}"
        )
    if not all(0 <= key < 2**63 for key in record.hash_ids):
        raise ValueError("hash_ids must be in [0, 2**63)")
    last = record.input_length - TOKENS_PER_HASH * (num_blocks - 1)
    lengths = [TOKENS_PER_HASH] * (num_blocks - 1) + [last]
    segments = tuple(map(Segment, record.hash_ids, lengths))
    return Session(
        session_id=f"request-{index}",
        start_s=record.timestamp / 1000.0 / speed,
        tenant=record.tenant,
        priority=record.priority,
        turns=(Turn(0.0, segments, record.output_length),),
    )
