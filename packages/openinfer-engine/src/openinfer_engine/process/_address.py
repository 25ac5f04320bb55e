"""Addresses of engines: `unix:PATH` and `tcp:HOST:PORT`."""

import ipaddress
import os
import socket
import stat
from contextlib import suppress

from openinfer_engine.errors import AddressRejected


def split_address(address: str) -> tuple[str, str, int]:
    """Returns the parts of an address: ("unix", path, 0) or ("tcp", host, port).

    Raises:
        AddressRejected: it has another form, or its host is not a loopback host. The socket has no
            authentication.
    """
    scheme, _, rest = address.partition(":")
    if scheme == "unix" and rest:
        return "unix", rest, 0
    if scheme == "tcp":
        host, _, port = rest.rpartition(":")
        host = host.strip("[]")
        if host and port.isdecimal() and int(port) < 65536:
            _check_loopback(address, host)
            return "tcp", host, int(port)
    raise AddressRejected(address, "expected unix:PATH or tcp:HOST:PORT")


def listen(address: str) -> socket.socket:
    """Returns a listening, non-blocking socket. Only its owner may connect to a Unix socket.

    Raises:
        AddressRejected: the address cannot be bound.
    """
    scheme, place, port = split_address(address)
    family = socket.AF_UNIX if scheme == "unix" else _family(place)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if scheme == "unix":
            _remove_stale(place)
            listener.bind(place)
            os.chmod(place, stat.S_IRUSR | stat.S_IWUSR)
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((place, port))
        listener.listen(128)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise AddressRejected(address, error.strerror or str(error)) from error
    return listener


def bound_address(listener: socket.socket) -> str:
    """Returns the address of a listener, with the port that the system chose."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"tcp:[{host}]:{port}" if ":" in host else f"tcp:{host}:{port}"


def _check_loopback(address: str, host: str) -> None:
    try:
        is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise AddressRejected(
            address, "the engine's socket has no authentication: only loopback hosts"
        )


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def remove_socket_file(name: object) -> None:
    """Removes the file of a Unix listener; does nothing for other listeners.

    Args:
        name: the result of the listener's `getsockname`.
    """
    if isinstance(name, str) and name:
        with suppress(FileNotFoundError):
            os.unlink(name)


def _remove_stale(path: str) -> None:
    """Removes a socket file without a listener. If the file is anything else, `bind` will fail."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
