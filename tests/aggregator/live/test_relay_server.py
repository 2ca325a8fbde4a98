"""The relay's loop on real sockets and processes: who ended is said to the root, at a cost of what happened."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading

import pytest

from aggregator.live.lifeline import Lifeline
from aggregator.live.processes import Processes
from aggregator.live.relay import Relay
from aggregator.live.relay_server import RelayServer
from rankside import messages, wire
from rankside.machine import machine_name
from rankside.transport import Hub, Link


class CountingProcesses(Processes):
    asked = 0

    def ended(self, pid, *, now):
        self.asked += 1
        return super().ended(pid, now=now)


@pytest.fixture
def sleepers():
    started = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) for _ in range(4)]
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_ranks_whose_processes_end_are_reported_in_that_order_and_no_process_is_asked_about_in_between(
    sleepers, socket_folder, within
):
    heard = []
    stopping = threading.Event()
    with contextlib.ExitStack() as stack:
        root, hub = (
            stack.enter_context(contextlib.closing(Hub(f"ipc://{socket_folder}/{name}"))) for name in "ab"
        )
        link = stack.enter_context(contextlib.closing(Link(f"ipc://{socket_folder}/a")))
        processes = stack.enter_context(contextlib.closing(CountingProcesses()))
        relay = Relay(send_down=hub.send, send_up=link.send)
        server = RelayServer(hub, link, relay, lifeline=Lifeline(None), processes=processes)
        loop = threading.Thread(target=server.run, kwargs={"stopped": stopping.is_set})
        loop.start()
        stack.callback(loop.join)
        stack.callback(stopping.set)

        def said(kind, count):
            for identity, payload in root.receive(wait_seconds=0.02, at_most=100):
                heard.append(wire.decode(payload))
                if isinstance(heard[-1], messages.Join):
                    root.send(identity, wire.encode(messages.Welcome("run")))
            return len([message for message in heard if isinstance(message, kind)]) >= count

        within(lambda: said(messages.Join, 1) and relay.joined)
        ranks = [stack.enter_context(contextlib.closing(Link(f"ipc://{socket_folder}/b"))) for _ in sleepers]
        for rank, (peer, process) in enumerate(zip(ranks, sleepers, strict=True)):
            hello = messages.Hello("run", rank, 5, len(ranks), machine_name(), process.pid, {})
            assert peer.send(wire.encode(hello))
        within(lambda: said(messages.Hello, len(ranks)))
        assert ranks[1].send(wire.encode(messages.Goodbye(1, 5, 0, "")))
        within(lambda: said(messages.Goodbye, 1))
        for rank in (1, 2, 0):
            sleepers[rank].kill()
            sleepers[rank].wait()
        within(lambda: said(messages.Goodbye, 3))
    goodbyes = [(m.rank, m.reason) for m in heard if isinstance(m, messages.Goodbye)]
    assert goodbyes == [(1, ""), (2, messages.GONE), (0, messages.GONE)]
    assert processes.asked == len(ranks) + 3  # once when it comes, once when it has ended
