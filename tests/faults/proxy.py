"""A ZeroMQ proxy between ranks and aggregator that loses, delays, doubles, reorders, and breaks connections.

Every rank has an endpoint of its own here. Each of its connections gets one to the aggregator, so that the
aggregator sees what it would see without the proxy. One thread does everything; the faults are those of the
plan, and each is used up once.
"""

from __future__ import annotations

import threading
import time

import zmq
from plan import Cut, Message

from rankside import messages, wire

_TICK_SECONDS = 0.02
_OVERTAKERS = 3  # messages that pass one that is reordered
_HOLD_SECONDS = 0.5  # how long one waits for them
_KINDS = {
    messages.Hello: "hello",
    messages.Tags: "tags",
    messages.Block: "block",
    messages.Heartbeat: "heartbeat",
    messages.Goodbye: "goodbye",
    messages.Pulse: "pulse",
}


class Proxy(threading.Thread):
    """endpoints: where each rank has to connect, by rank. failure: what ended the thread before its time."""

    def __init__(self, folder, backend, faults, *, ranks):
        super().__init__(name="proxy", daemon=True)
        self.endpoints = {rank: f"ipc://{folder}/rank_{rank}" for rank in range(ranks)}
        self.failure = None
        self._backend = backend
        self._stopping = threading.Event()
        self._lines = {rank: _Line(rank, [f for f in faults if f.rank == rank]) for rank in range(ranks)}

    def stop(self):
        self._stopping.set()
        self.join(10)

    def run(self):
        context = zmq.Context()
        try:
            while not self._stopping.is_set():
                self._serve_once(context)
        except Exception as error:  # noqa: BLE001 (the test looks at it)
            self.failure = error
        finally:
            context.destroy(linger=0)

    def _serve_once(self, context):
        now = time.monotonic()
        poller = zmq.Poller()
        for rank, line in self._lines.items():
            if line.front is None and now >= line.closed_until:
                line.open(context, self.endpoints[rank])
            line.release(now)
            for socket in line.sockets():
                poller.register(socket, zmq.POLLIN)
        ready = dict(poller.poll(_TICK_SECONDS * 1000))
        for line in self._lines.values():
            line.forward(context, self._backend, ready)


class _Line:
    """The connections of one rank."""

    def __init__(self, rank, faults):
        self.front = None
        self.closed_until = 0.0
        self._rank = rank
        self._messages = [f for f in faults if isinstance(f, Message)]
        self._cuts = [f for f in faults if isinstance(f, Cut)]
        self._used = [0] * len(self._messages)
        self._backs = {}
        self._step = 0
        self._held = []  # [when to send at the latest, messages that still have to pass, send]

    def open(self, context, endpoint):
        self.front = context.socket(zmq.ROUTER)
        self.front.bind(endpoint)

    def sockets(self):
        return [] if self.front is None else [self.front, *self._backs.values()]

    def release(self, now):
        due = [held for held in self._held if now >= held[0] or held[1] <= 0]
        self._held = [held for held in self._held if held not in due]
        for _, _, send in due:
            send()

    def forward(self, context, backend, ready):
        if self.front is None:
            return
        for identity, back in list(self._backs.items()):
            while self.front is not None and back in ready and back.poll(0):
                payload = back.recv()
                self._pass(payload, lambda i=identity, p=payload: self.front.send_multipart([i, p]))
        while self.front is not None and self.front in ready and self.front.poll(0):
            identity, payload = self.front.recv_multipart()
            if identity not in self._backs:
                self._backs[identity] = context.socket(zmq.DEALER)
                self._backs[identity].setsockopt(zmq.RECONNECT_IVL, 50)
                self._backs[identity].connect(backend)
            back = self._backs[identity]
            self._pass(payload, lambda b=back, p=payload: b.send(p))

    def _pass(self, payload, send):
        message = wire.decode(payload)
        kind = _KINDS.get(type(message), "")
        if kind == "block":
            self._step = max(self._step, message.step)
            if self._cuts and self._step >= self._cuts[0].step:
                self._cut(self._cuts.pop(0).seconds)
                return
        fault = self._fault(kind)
        now = time.monotonic()
        if fault is None:
            send()
            for held in self._held:
                held[1] -= 1
            self.release(now)
        elif fault.what == "duplicate":
            send()
            send()
        elif fault.what == "delay":
            self._held.append([now + fault.seconds, float("inf"), send])
        elif fault.what == "reorder":
            self._held.append([now + _HOLD_SECONDS, _OVERTAKERS, send])

    def _fault(self, kind):
        for i, fault in enumerate(self._messages):
            if fault.kind == kind and self._step >= fault.step and self._used[i] < fault.count:
                self._used[i] += 1
                return fault
        return None

    def _cut(self, seconds):
        for socket in self.sockets():
            socket.close(linger=0)
        self.front = None
        self._backs = {}
        self._held = []
        self.closed_until = time.monotonic() + seconds
