"""Ranks, relays and a root joined by wires that lose, repeat and break, without a socket: moved by the test.

A wire is a list each way. Everything that a process keeps in memory goes with it when it is killed; the root's
successor begins with what was stored.
"""

from __future__ import annotations

import itertools
import random

import numpy as np

from aggregator.align import Aligner
from aggregator.live.relay import Relay
from aggregator.live.service import Service
from aggregator.merge import merge
from rankside import messages, window
from rankside import uplink as uplink_module
from rankside.gather import Report
from rankside.tags import Tag
from rankside.uplink import Uplink

ROOT = -1  # the parent of a relay or rank that is connected to the root
INCARNATION = 7
_LAYOUTS = ((Tag("loss"), Tag("own"), Tag("rate")), (Tag("rate"), Tag("loss"), Tag("own")))
_identities = itertools.count(1)


def values_of(rank, step):
    """What a rank reports of a step, by tag: most often two tags, now and then one more or something not finite."""
    values = {"loss": 1.0 + 0.1 * rank + 0.01 * step, "rate": 0.5 / step}
    if step % 5 == 3 and rank % 2:
        values["own"] = float(rank)
    if step == 4 and rank == 0:
        values["loss"] = np.nan
    return values


class Wire:
    """One connection upward. turned_away is what an uplink asks of a link."""

    turned_away = 0

    def __init__(self):
        self.connect()

    def connect(self):
        self.identity = b"%d" % next(_identities)
        self.up, self.down, self.inbox = [], [], []

    def send(self, payload):
        self.up.append(payload)
        return True

    def receive(self, *, wait_seconds=0.0):  # noqa: ARG002 (as a link has it)
        payloads, self.inbox = self.inbox, []
        return payloads

    def close(self, *, linger_seconds=0.0):
        pass


class World:
    """parents: where each relay is connected, an earlier relay or ROOT; places: where each rank is."""

    def __init__(self, monkeypatch, *, parents, places):
        self.parents, self.places = parents, places
        self.now = 0.0
        self.put = [0] * len(places)
        self.merged = {}
        self.closed = []
        self.saved = ({}, [], -1, {})
        self.relay_wires = [Wire() for _ in parents]
        self.rank_wires = [Wire() for _ in places]
        self.uplinks = [self._uplink(monkeypatch, rank) for rank in range(len(places))]
        self.relays = [None] * len(parents)
        for i in range(len(parents)):
            self._start_relay(i)
        self._start_root()

    def _uplink(self, monkeypatch, rank):
        monkeypatch.setattr(uplink_module, "Link", lambda *_, **__: self.rank_wires[rank])
        hello = messages.Hello("run", rank, INCARNATION, len(self.places), f"host{rank}", 1, {})
        return Uplink("", hello, _LAYOUTS[rank % 2], buffer_bytes=1 << 20, heartbeat_seconds=1.0)

    def _start_relay(self, i):
        self.relays[i] = Relay(
            send_down=lambda identity, payload: self._send_down(i, identity, payload),
            send_up=self.relay_wires[i].send,
        )

    def _start_root(self):
        merged, closed, closed_until, ranks = self.saved
        self.merged, self.closed = dict(merged), list(closed)
        self.aligner = Aligner(world_size=len(self.places), max_wait_seconds=1e9)
        self.aligner.resume(closed_until, {rank: stored.incarnation for rank, stored in ranks.items()})
        self.service = Service(
            self.aligner,
            run="run",
            send=lambda identity, payload: self._send_down(ROOT, identity, payload),
            stored=ranks,
        )

    def wires(self):
        """Every wire with its parent, those of ranks first."""
        return [
            *zip(self.rank_wires, self.places, strict=True),
            *reversed(list(zip(self.relay_wires, self.parents, strict=True))),
        ]

    def _send_down(self, node, identity, payload):
        for each, parent in self.wires():
            if parent == node and each.identity == identity:
                each.down.append(payload)

    def take(self, parent, identity, payload):
        """Have a relay or the root take what a child sent."""
        if parent == ROOT:
            self.service.take(identity, payload, now=self.now)
        else:
            self.relays[parent].take_down(identity, payload, now=self.now)
        self._close(self.aligner.close(now=self.now))

    def _close(self, matrices):
        for matrix in matrices:
            self.closed.append(matrix.step)
            self.merged[matrix.step] = ([matrix.tags[i].name for i in matrix.tag_ids], merge(matrix))

    # What may happen.

    def produce(self):
        """Every rank reports its next step."""
        for rank, uplink in enumerate(self.uplinks):
            self.put[rank] += 1
            step = self.put[rank]
            values = values_of(rank, step)
            ids = [i for i, tag in enumerate(_LAYOUTS[rank % 2]) if tag.name in values]
            numbers = np.array([values[_LAYOUTS[rank % 2][i].name] for i in ids])
            uplink.put(Report(step, np.array(ids, np.int64), window.single(numbers), float(step)))

    def move(self, seed=None):
        """Move everything by one hop, up and then down; with a seed, lose and repeat messages."""
        chance = random.Random(seed)

        def through(payloads):
            fates = (1,) if seed is None else (0, 1, 1, 1, 1, 2)
            return [payload for payload in payloads for _ in range(chance.choice(fates))]

        self.now += 2.0
        for uplink in self.uplinks:
            uplink.pump(now=self.now, step=1, phase="", phase_seconds=0.0, wait_seconds=0.0)
        for i, relay in enumerate(self.relays):
            if not relay.joined:
                relay.join()
            for payload in self.relay_wires[i].receive():
                relay.take_up(payload)
            relay.pump(now=self.now)
        for each, parent in self.wires():
            payloads, each.up = each.up, []
            for payload in through(payloads):
                self.take(parent, each.identity, payload)
        for each, _ in self.wires():
            payloads, each.down = each.down, []
            each.inbox += through(payloads)

    def store(self):
        """Bring what is closed to disk, and acknowledge it."""
        self.service.store()
        self.saved = (
            dict(self.merged), list(self.closed), self.aligner.closed_until, self.service.stored_ranks()
        )  # fmt: skip
        self.service.acknowledge()

    def reconnect(self, i):
        """Break a wire, with all that is on it."""
        wires = self.wires()
        wires[i % len(wires)][0].connect()

    def kill_relay(self, i):
        if self.relays:
            i %= len(self.relays)
            self._start_relay(i)
            self._cut_off(i)
            self.relay_wires[i].connect()

    def kill_root(self):
        self._start_root()
        self._cut_off(ROOT)

    def _cut_off(self, node):
        for each, parent in self.wires():
            if parent == node:
                each.connect()

    # What is true afterwards.

    def settle(self, rounds=60):
        """Let good connections do their work."""
        for _ in range(rounds):
            self.move()
            self.store()
            if self.delivered():
                return

    def delivered(self):
        """Whether every rank has heard that all of its blocks are stored."""
        return all(not len(uplink._outbox) for uplink in self.uplinks)

    def acknowledged(self):
        """The highest sequence that each rank has forgotten, and the highest that was stored of it."""
        stored = self.saved[3]
        return [
            (uplink._outbox.oldest - 1, stored[rank].sequence if rank in stored else 0)
            for rank, uplink in enumerate(self.uplinks)
        ]
