"""ZeroMQ sockets for both ends: a link on the rank, a hub on the aggregator. They carry bytes and know nothing else.

Endpoints are `ipc://<path>` inside a folder that only its owner can enter, or `tcp://<host>:<port>`. TCP off
the loopback interface needs keys (CURVE, Bernstein 2013, as ZeroMQ's RFC 26 defines it), unless plain TCP was
asked for by name. Nothing here blocks longer than it was asked to, and closing drops what was not delivered:
keeping undelivered messages is the outbox's work.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import parse_monitor_message

from rankside.endpoints import check_endpoint, check_socket_folder, check_socket_free
from rankside.errors import TransportError
from rankside.wire import MESSAGE_LIMIT_BYTES

if TYPE_CHECKING:
    from rankside.keys import Keys

_LOGGER = logging.getLogger("crossrank")
_REFUSALS = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_REFUSALS_LOGGED = 2
# TCP does not notice a cut cable for minutes; these make it seconds.
_HEARTBEAT_MILLISECONDS = 2000
_HEARTBEAT_TIMEOUT_MILLISECONDS = 6000


class Link:
    """A rank's connection to the aggregator; reconnects by itself, and queues a bounded number of messages.

    keys: for TCP beyond this machine. insecure: plain TCP was asked for by name.
    """

    def __init__(self, endpoint: str, *, keys: Keys | None = None, insecure: bool = False) -> None:
        check_endpoint(endpoint, secured=insecure or keys is not None)
        self._context = zmq.Context()
        self._socket = _socket(self._context, zmq.DEALER, endpoint)
        self._socket.setsockopt(zmq.SNDHWM, 1000)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 100)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        if keys is not None and endpoint.startswith("tcp://"):
            self._socket.curve_serverkey = keys.server_public
            self._socket.curve_publickey = keys.client_public
            self._socket.curve_secretkey = keys.client_secret
        self._monitor = _RefusalMonitor(
            self._socket,
            f"the connection to {endpoint} is refused: the key is missing on one side, or it is another one; "
            "--key must name the same file on every machine",
        )
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()  # a context that is only collected would wait for its socket for ever
            raise TransportError(f"cannot connect to {endpoint}: {error.strerror}") from error

    @property
    def turned_away(self) -> int:
        """How often the other side has refused the connection, before any message."""
        return self._monitor.refusals

    def send(self, payload: bytes) -> bool:
        """Queue a message; False when the queue is full, and the message must be offered again."""
        try:
            self._socket.send(payload, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self, *, wait_seconds: float = 0.0) -> list[bytes]:
        """Return the messages that are there, waiting so long for the first one."""
        self._monitor.look()
        messages: list[bytes] = []
        if not self._socket.poll(int(wait_seconds * 1000)):
            return messages
        with contextlib.suppress(zmq.Again):
            while True:
                messages.append(self._socket.recv(zmq.NOBLOCK))
        return messages

    def close(self, *, linger_seconds: float = 0.0) -> None:
        """Close, after giving queued messages so long to leave."""
        self._monitor.close()
        self._context.destroy(linger=int(linger_seconds * 1000))


class Hub:
    """The aggregator's end: every peer is known by an identity that is made anew for each connection.

    endpoints: where it listens, resolved. Raises `TransportError` where an endpoint cannot be bound or is not
    safe to bind.
    """

    def __init__(self, *endpoints: str, keys: Keys | None = None, insecure: bool = False) -> None:
        for endpoint in endpoints:
            check_endpoint(endpoint, secured=insecure or keys is not None)
            if endpoint.startswith("ipc://"):
                path = Path(endpoint[len("ipc://") :])
                check_socket_folder(path.parent)
                check_socket_free(path)
        self._context = zmq.Context()
        self._guard = _Guard(self._context, keys) if keys is not None else None
        self._sockets: list[zmq.Socket[bytes]] = []
        self._monitors: list[_RefusalMonitor] = []
        self._poller = zmq.Poller()
        try:
            self.endpoints = tuple(self._bind(endpoint, keys) for endpoint in endpoints)
        except zmq.ZMQError as error:
            self.close(linger_seconds=0.0)
            raise TransportError(
                f"cannot listen on {' and '.join(endpoints)}: {error.strerror}; choose another --bind"
            ) from error

    @property
    def turned_away(self) -> int:
        """How many connections were refused for their key."""
        return sum(monitor.refusals for monitor in self._monitors)

    def receive(self, *, wait_seconds: float, at_most: int) -> list[tuple[bytes, bytes]]:
        """Return up to about `at_most` (identity, payload) pairs, waiting so long for the first one."""
        for monitor in self._monitors:
            monitor.look()
        messages: list[tuple[bytes, bytes]] = []
        for socket, _ in self._poller.poll(int(wait_seconds * 1000)):
            if isinstance(socket, int):
                continue
            prefix = bytes([self._sockets.index(socket)])
            with contextlib.suppress(zmq.Again):
                while len(messages) < at_most:
                    frames = socket.recv_multipart(zmq.NOBLOCK)
                    # A peer that sends several frames is not one of ours; what does not decode is refused there.
                    messages.append((prefix + frames[0], frames[-1] if len(frames) == 2 else b""))
        return messages

    def wake_on(self, descriptor: int) -> None:
        """Have `receive` wait no longer as soon as this descriptor can be read."""
        self._poller.register(descriptor, zmq.POLLIN)

    def send(self, identity: bytes, payload: bytes) -> None:
        """Send to a peer; dropped when it is gone or does not keep up, since it will ask again."""
        with contextlib.suppress(zmq.Again):
            self._sockets[identity[0]].send_multipart([identity[1:], payload], zmq.NOBLOCK)

    def close(self, *, linger_seconds: float = 0.5) -> None:
        """Close, after giving queued messages so long to leave."""
        for monitor in self._monitors:
            monitor.close()
        for socket in self._sockets:
            socket.close(linger=int(linger_seconds * 1000))
        if self._guard is not None:
            self._guard.stop()
        self._context.destroy(linger=int(linger_seconds * 1000))

    def _bind(self, endpoint: str, keys: Keys | None) -> str:
        socket = _socket(self._context, zmq.ROUTER, endpoint)
        self._sockets.append(socket)
        socket.setsockopt(zmq.RCVHWM, 100_000)
        socket.setsockopt(zmq.SNDHWM, 1000)
        socket.setsockopt(zmq.BACKLOG, 4096)
        if endpoint.startswith("tcp://"):
            if keys is not None:
                socket.curve_server = True
                socket.curve_secretkey = keys.server_secret
            self._monitors.append(
                _RefusalMonitor(
                    socket, f"turned away a connection to {endpoint}: its key is missing or wrong"
                )
            )
        socket.bind(endpoint)
        self._poller.register(socket, zmq.POLLIN)
        return str(socket.getsockopt_string(zmq.LAST_ENDPOINT))


class _Guard:
    """Lets in who has the client's key; answers ZeroMQ's authentication requests in a thread of its own."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: Keys) -> None:
        self._client_public = keys.client_public
        self._authenticator = ThreadAuthenticator(context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(domain="*", credentials_provider=self)
        self.stop = self._authenticator.stop

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether the peer with this public key, in Z85, may come in."""
        del domain
        return key == self._client_public


class _RefusalMonitor:
    """Counts the handshakes that failed on a socket, and says so a few times."""

    def __init__(self, socket: zmq.Socket[bytes], message: str) -> None:
        self.refusals = 0
        self._message = message
        self._socket = socket
        self._events = socket.get_monitor_socket(_REFUSALS)

    def look(self) -> None:
        """Take note of what happened since the last look; does not wait."""
        while self._events.poll(0):
            parse_monitor_message(self._events.recv_multipart(zmq.NOBLOCK))
            self.refusals += 1
            if self.refusals <= _REFUSALS_LOGGED:
                _LOGGER.warning("%s", self._message)

    def close(self) -> None:
        """Stop watching."""
        self._socket.disable_monitor()


def _socket(context: zmq.Context[zmq.Socket[bytes]], kind: int, endpoint: str) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_LIMIT_BYTES)
    socket.setsockopt(zmq.IPV6, "[" in endpoint)
    if endpoint.startswith("tcp://"):
        socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MILLISECONDS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MILLISECONDS)
    return socket
