"""Options of event publishing, with the keys of vLLM's `--kv-events-config`."""

from importlib.util import find_spec
from typing import Literal

from msgspec import Struct

from openinfer_kv_cache.errors import PublisherError


class KVEventsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where events are published. Unknown keys and values out of range are refused by name.

    Attributes:
        enable_kv_cache_events: whether events are published at all.
        publisher: "zmq", "null" for none, or None, which means "zmq" if events are enabled.
        endpoint: address of the PUB socket. The socket binds an address that names every interface
            (`*`, `::`) or a file (`ipc://`), and connects to any other.
        replay_endpoint: address that a ROUTER socket binds for replay; None for no replay.
        buffer_steps: number of batches kept for replay.
        hwm: number of batches queued for each subscriber; a slower subscriber loses batches.
        max_queue_size: always refused, because batches go straight to the socket.
        topic: first frame of every message; subscribers filter by its beginning.
    """

    enable_kv_cache_events: bool = False
    publisher: Literal["zmq", "null"] | None = None
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int | None = None
    topic: str = ""

    def __post_init__(self) -> None:
        for name in ("buffer_steps", "hwm"):
            if not 1 <= getattr(self, name) < 2**31:
                raise ValueError(f"{name} must be between 1 and {2**31 - 1}")
        for name in ("endpoint", "replay_endpoint"):
            if (address := getattr(self, name)) is not None:
                _check_address(name, address)
        if self.max_queue_size is not None:
            raise ValueError(
                "max_queue_size: batches go straight to the socket, without a queue before it; "
                "leave it out and use hwm"
            )

    @property
    def is_publishing(self) -> bool:
        """Whether events are sent to subscribers."""
        return self.enable_kv_cache_events and self.publisher != "null"

    def check_installed(self) -> None:
        """Checks that the package needed for publishing is installed.

        Raises:
            PublisherError: pyzmq is missing.
        """
        if self.is_publishing and find_spec("zmq") is None:
            raise PublisherError(
                'KV events over zmq need pyzmq: pip install "openinfer-kv-cache[events]"'
            )


def _check_address(name: str, address: str) -> None:
    if "://" not in address:
        raise ValueError(f"{name} {address!r} is not an address such as tcp://*:5557")
    if address.startswith("inproc://"):
        raise ValueError(
            f"{name} {address!r} cannot be reached from another process: use ipc:// or tcp://"
        )
    port = address.rpartition(":")[2]
    if address.startswith("tcp://") and port.isdecimal() and int(port) > 0xFFFF:
        raise ValueError(f"{name} {address!r}: a port is at most 65535")
