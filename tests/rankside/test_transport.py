"""Sockets: which endpoints are used, which are refused, and that nothing blocks."""

from __future__ import annotations

import socket

import pytest

from rankside.errors import TransportError
from rankside.transport import Hub, Link, check_endpoint


@pytest.mark.parametrize(
    "endpoint",
    ["ipc:///tmp/x/aggregator", "tcp://127.0.0.1:5555", "tcp://127.0.0.1:*", "tcp://localhost:1", "tcp://[::1]:80", "tcp://127.9.9.9:1"],
)  # fmt: skip
def test_a_safe_endpoint_is_accepted(endpoint):
    check_endpoint(endpoint)


@pytest.mark.parametrize(
    "endpoint",
    [
        "", "x", "ipc", "ipc://", "ipc:/tmp/x", "tcp://", "tcp://127.0.0.1", "tcp://127.0.0.1:", "tcp://:80",
        "tcp://127.0.0.1:65536", "tcp://127.0.0.1:-1", "tcp://127.0.0.1:²", "tcp://127.0.0.1:x", "tcp://*:80",
        "tcp://0.0.0.0:80", "tcp://[::]:80", "tcp://10.0.0.1:80", "tcp://example.org:80", "tcp://eth0:80",
        "tcp://127.0.0.1.example.org:80", "tcp://localhost.example.org:80", "inproc://x", "udp://127.0.0.1:80",
        "http://127.0.0.1:80", "ipc://@abstract", "ipc://*", "ipc:///" + "x" * 107,
    ],
)  # fmt: skip
def test_an_endpoint_that_is_malformed_or_open_to_others_is_refused(endpoint):
    with pytest.raises(TransportError, match="endpoint"):
        check_endpoint(endpoint)
    with pytest.raises(TransportError):
        Link(endpoint)
    with pytest.raises(TransportError):
        Hub(endpoint)


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701, 0o777])
def test_a_socket_folder_that_others_may_enter_is_refused(tmp_path, mode):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(TransportError, match="0700"):
        Hub(f"ipc://{folder}/a")


def test_a_socket_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(TransportError, match="socket folder"):
        Hub(f"ipc://{tmp_path}/missing/a")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_taken_port_is_refused_with_what_to_do(host):
    hub = Hub(f"tcp://{host}:*")
    try:
        with pytest.raises(TransportError, match=r"cannot listen on .*in use.*--bind"):
            Hub(hub.endpoints[0])
    finally:
        hub.close(linger_seconds=0)


@pytest.mark.parametrize("kind", ["ipc", "tcp4", "tcp6"])
def test_messages_go_both_ways_and_every_connection_has_its_own_identity(socket_folder, kind, within):
    hub = Hub({"ipc": f"ipc://{socket_folder}/a", "tcp4": "tcp://127.0.0.1:*", "tcp6": "tcp://[::1]:*"}[kind])
    links = [Link(hub.endpoints[0]) for _ in range(2)]
    try:
        for i, link in enumerate(links):
            assert link.send(b"from %d" % i)
        got = []
        within(lambda: got.extend(hub.receive(wait_seconds=0.1, at_most=10)) or len(got) == 2)
        assert len({identity for identity, _ in got}) == 2
        for identity, payload in got:
            hub.send(identity, payload + b" and back")
        for i, link in enumerate(links):
            assert within(lambda link=link: link.receive(wait_seconds=0.1)) == [b"from %d and back" % i]
    finally:
        for each in (*links, hub):
            each.close(linger_seconds=0)


def test_a_link_without_a_hub_takes_a_bounded_number_of_messages_and_never_blocks(socket_folder):
    link = Link(f"ipc://{socket_folder}/nobody")
    try:
        taken = sum(link.send(b"x") for _ in range(5000))
        assert 0 < taken < 5000
        assert link.receive() == []
    finally:
        link.close()


def test_sending_to_a_peer_that_is_not_there_does_nothing(socket_folder):
    hub = Hub(f"ipc://{socket_folder}/a")
    hub.send(b"\0nobody", b"x")
    hub.close(linger_seconds=0)


def test_an_endpoint_that_cannot_be_connected_to_is_refused_and_nothing_hangs():
    with pytest.raises(TransportError, match="cannot connect"):
        Link("tcp://127.0.0.1:*")


def test_a_unix_socket_on_which_somebody_listens_is_not_taken_over(socket_folder):
    endpoint = f"ipc://{socket_folder}/a"
    hub = Hub(endpoint)
    link = Link(endpoint)
    try:
        with pytest.raises(TransportError, match=r"another aggregator or relay listens there"):
            Hub(endpoint)
        assert link.send(b"for the first")
        assert [payload for _, payload in hub.receive(wait_seconds=10, at_most=9)] == [b"for the first"]
    finally:
        link.close()
        hub.close(linger_seconds=0)


def test_a_unix_socket_that_a_killed_aggregator_left_behind_is_used_again(socket_folder):
    path = socket_folder / "a"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    assert path.exists()
    Hub(f"ipc://{path}").close(linger_seconds=0)
