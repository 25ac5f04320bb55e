import socket
from pathlib import Path

import pytest

from openinfer_engine import AddressRejected
from openinfer_engine.process._address import bound_address, listen, split_address


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("unix:/a/b.sock", ("unix", "/a/b.sock", 0)),
        ("tcp:127.0.0.1:80", ("tcp", "127.0.0.1", 80)),
        ("tcp:localhost:0", ("tcp", "localhost", 0)),
        ("tcp:[::1]:8", ("tcp", "::1", 8)),
    ],
)
def test_addresses(address: str, parts: tuple[str, str, int]) -> None:
    assert split_address(address) == parts


@pytest.mark.parametrize(
    "address", ["", "unix:", "/a/b", "tcp:80", "tcp:127.0.0.1:x", "tcp:127.0.0.1:70000", "http:a:1"]
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(AddressRejected, match="expected unix:PATH or tcp:HOST:PORT"):
        split_address(address)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "example.org", "[::]"])
def test_only_loopback(host: str) -> None:
    with pytest.raises(AddressRejected, match="no authentication"):
        split_address(f"tcp:{host}:80")


def test_a_port_of_the_systems_choice() -> None:
    with listen("tcp:127.0.0.1:0") as listener:
        address = bound_address(listener)
        with pytest.raises(AddressRejected, match="in use"):
            listen(address)


def test_a_stale_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/e.sock"
    listen(address).close()
    with listen(address) as listener:
        assert bound_address(listener) == address
        with pytest.raises(AddressRejected, match="in use"):
            listen(address)


def test_a_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "e.sock"
    path.write_text("mine")
    with pytest.raises(AddressRejected):
        listen(f"unix:{path}")
    assert path.read_text() == "mine"


def test_a_socket_is_private(tmp_path: Path) -> None:
    with listen(f"unix:{tmp_path}/e.sock"):
        assert (tmp_path / "e.sock").stat().st_mode & 0o077 == 0
    assert socket.AF_UNIX
