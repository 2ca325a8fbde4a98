"""ZeroMQ sockets for both ends: a link on the rank, a hub on the aggregator. They carry bytes and know nothing else.

Endpoints are `ipc://<path>` inside a folder that only its owner can enter, or `tcp://<host>:<port>`. Plain TCP
off the loopback interface is refused, because anybody could connect to it. Nothing here blocks longer than it
was asked to, and closing drops what was not delivered: keeping undelivered messages is the outbox's work.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import stat
from pathlib import Path

import zmq

from rankside.errors import TransportError
from rankside.wire import MESSAGE_LIMIT_BYTES

_IPC_PATH_LIMIT_BYTES = 107  # the kernel's limit on the path of a Unix socket


class Link:
    """A rank's connection to the aggregator; reconnects by itself, and queues a bounded number of messages."""

    def __init__(self, endpoint: str) -> None:
        check_endpoint(endpoint)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 1000)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_LIMIT_BYTES)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 100)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        self._socket.connect(endpoint)

    def send(self, payload: bytes) -> bool:
        """Queue a message; False when the queue is full, and the message must be offered again."""
        try:
            self._socket.send(payload, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self, *, wait_seconds: float = 0.0) -> list[bytes]:
        """Return the messages that are there, waiting so long for the first one."""
        messages: list[bytes] = []
        if not self._socket.poll(int(wait_seconds * 1000)):
            return messages
        try:
            while True:
                messages.append(self._socket.recv(zmq.NOBLOCK))
        except zmq.Again:
            return messages

    def close(self, *, linger_seconds: float = 0.0) -> None:
        """Close, after giving queued messages so long to leave."""
        self._context.destroy(linger=int(linger_seconds * 1000))


class Hub:
    """The aggregator's end: every peer is known by an identity that ZeroMQ makes anew for each connection.

    Raises `TransportError` where the endpoint cannot be bound or is not safe to bind.
    """

    def __init__(self, endpoint: str) -> None:
        check_endpoint(endpoint)
        if endpoint.startswith("ipc://"):
            _check_socket_folder(Path(endpoint[len("ipc://") :]).parent)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVHWM, 100_000)
        self._socket.setsockopt(zmq.SNDHWM, 1000)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_LIMIT_BYTES)
        self._socket.setsockopt(zmq.BACKLOG, 4096)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise TransportError(
                f"cannot listen on {endpoint}: {error.strerror}; choose another --bind"
            ) from error
        self.endpoint: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def receive(self, *, wait_seconds: float, at_most: int) -> list[tuple[bytes, bytes]]:
        """Return up to `at_most` (identity, payload) pairs, waiting so long for the first one."""
        messages: list[tuple[bytes, bytes]] = []
        if not self._socket.poll(int(wait_seconds * 1000)):
            return messages
        with contextlib.suppress(zmq.Again):
            while len(messages) < at_most:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
                # A peer that sends several frames is not one of ours; what does not decode is refused there.
                messages.append((frames[0], frames[-1] if len(frames) == 2 else b""))
        return messages

    def send(self, identity: bytes, payload: bytes) -> None:
        """Send to a peer; dropped when it is gone or does not keep up, since it will ask again."""
        with contextlib.suppress(zmq.Again):
            self._socket.send_multipart([identity, payload], zmq.NOBLOCK)

    def close(self, *, linger_seconds: float = 0.5) -> None:
        """Close, after giving queued messages so long to leave."""
        self._context.destroy(linger=int(linger_seconds * 1000))


def check_endpoint(endpoint: str) -> None:
    """Raise `TransportError` where this is no endpoint that may be used."""
    scheme, separator, address = endpoint.partition("://")
    if not separator or scheme not in {"ipc", "tcp"} or not address:
        raise TransportError(f"endpoint {endpoint!r}: ipc://<path> or tcp://<host>:<port> is expected")
    if scheme == "ipc":
        if address[0] in "@*":
            raise TransportError(
                f"endpoint {endpoint!r}: a path is expected; nobody can be kept out of an abstract socket"
            )
        if len(os.fsencode(address)) > _IPC_PATH_LIMIT_BYTES:
            raise TransportError(
                f"endpoint {endpoint!r}: the path is longer than the {_IPC_PATH_LIMIT_BYTES} bytes that the system "
                "allows for a socket; choose a shorter folder"
            )
        return
    host, separator, port = address.rpartition(":")
    if not separator or (not (port.isdecimal() and int(port) < 65536) and port != "*"):
        raise TransportError(f"endpoint {endpoint!r}: tcp://<host>:<port> is expected")
    if not _is_loopback(host.strip("[]")):
        raise TransportError(
            f"endpoint {endpoint!r}: plain TCP is accepted on the loopback interface only (127.0.0.1, ::1)"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_socket_folder(folder: Path) -> None:
    try:
        status = folder.stat()
    except OSError as error:
        raise TransportError(f"socket folder {folder}: {error.strerror}") from error
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise TransportError(
            f"socket folder {folder} must belong to you with mode 0700: others could connect"
        )
