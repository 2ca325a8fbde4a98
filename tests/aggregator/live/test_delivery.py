"""Between a rank's uplink and the service: whatever the connection does, a block is merged once or counted as lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.align import Aligner
from aggregator.live.service import Service
from rankside import messages, window
from rankside import uplink as uplink_module
from rankside.gather import Report
from rankside.tags import Tag
from rankside.uplink import Uplink


class Wires:
    """Connections that lose, repeat and hold back messages as they are told, but keep their order."""

    def __init__(self):
        self.identity = 0
        self.up, self.down = [], []

    def reconnect(self):
        self.identity += 1
        self.up, self.down = [], []

    # What an uplink asks of a link.
    turned_away = 0

    def send(self, payload):
        self.up.append(payload)
        return len(self.up) < 50

    def receive(self, *, wait_seconds=0.0):  # noqa: ARG002 (as a link has it)
        messages, self.down = self.down, []
        return messages

    def close(self, *, linger_seconds=0.0):
        pass


class World:
    """One rank, its wires, and one aggregator after the other."""

    def __init__(self, monkeypatch, *, buffer_bytes):
        self.wires = Wires()
        monkeypatch.setattr(uplink_module, "Link", lambda *_, **__: self.wires)
        hello = messages.Hello("run", 0, 7, 1, "host", 1, {})
        self.tags = [Tag("loss"), Tag("own")]
        self.uplink = Uplink("", hello, self.tags, buffer_bytes=buffer_bytes, heartbeat_seconds=1.0)
        self.now = 0.0
        self.put = 0
        self.lost = 0
        self.merged = []
        self.saved = (0, -1, {})
        self.start_aggregator()

    def start_aggregator(self):
        """Go on as a killed aggregator's successor does: with what is on disk."""
        kept, closed_until, ranks = self.saved
        del self.merged[kept:]
        self.aligner = Aligner(world_size=1)
        self.aligner.resume(closed_until, {rank: stored.incarnation for rank, stored in ranks.items()})
        self.service = Service(
            self.aligner, run="run", send=lambda _, payload: self.wires.down.append(payload), stored=ranks
        )

    def produce(self):
        self.put += 1
        ids = np.array([0] if self.put < 5 else [0, 1], np.int64)
        columns = window.single(np.full(len(ids), float(self.put)))
        self.uplink.put(Report(self.put, ids, columns, 0.0))

    def pump(self):
        self.now += 2.0
        self.uplink.pump(now=self.now, step=self.put, phase="", phase_seconds=0.0, wait_seconds=0.0)

    def deliver(self, *, drop=(), repeat=()):
        messages, self.wires.up = self.wires.up, []
        for i, payload in enumerate(messages):
            for _ in range((i not in drop) + (i in repeat)):
                self.service.take(b"%d" % self.wires.identity, payload, now=self.now)
                self.merged += [int(matrix.columns[6, 0, 0]) for matrix in self.aligner.close(now=self.now)]

    def store(self):
        self.service.store()
        acknowledge = getattr(self.service, "acknowledge", None)
        self.saved = (len(self.merged), self.aligner.closed_until, self.service.stored_ranks())
        if acknowledge is not None:
            acknowledge()


@pytest.fixture
def world(monkeypatch):
    return lambda buffer_bytes: World(monkeypatch, buffer_bytes=buffer_bytes)


actions = st.lists(
    st.one_of(
        st.just("produce"),
        st.just("pump"),
        st.just("store"),
        st.just("reconnect"),
        st.just("kill the aggregator"),
        st.tuples(st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5))),
    ),
    max_size=60,
)


def act(world, action):
    if isinstance(action, tuple):
        world.deliver(drop=action[0], repeat=action[1])
    elif action == "reconnect":
        world.wires.reconnect()
    elif action == "kill the aggregator":
        world.start_aggregator()
        world.wires.reconnect()
    else:
        getattr(world, action)()


def settle(world):
    """A connection that has become good for long enough."""
    for _ in range(12):
        world.pump()
        world.deliver()
        world.store()
    world.merged += [int(matrix.columns[6, 0, 0]) for matrix in world.aligner.finish()]


@settings(max_examples=60, deadline=None)
@given(actions)
def test_every_block_is_merged_exactly_once_in_order_whatever_happens_on_the_way(actions):
    with pytest.MonkeyPatch.context() as patch:
        world = World(patch, buffer_bytes=1 << 20)
        for action in actions:
            act(world, action)
        settle(world)
        assert world.uplink.refusal == ""
        assert world.merged == list(range(1, world.put + 1))
        assert world.uplink.delivered
        assert world.service.lost == 0


@settings(max_examples=60, deadline=None)
@given(actions)
def test_what_leaves_a_full_buffer_is_counted_and_the_rest_is_merged_once(actions):
    with pytest.MonkeyPatch.context() as patch:
        world = World(patch, buffer_bytes=400)  # two or three blocks
        for action in actions:
            act(world, action)
        settle(world)
        assert sorted(set(world.merged)) == world.merged
        missing = set(range(1, world.put + 1)) - set(world.merged)
        assert len(missing) <= world.uplink.dropped
        assert world.uplink.delivered
        assert world.put == 0 or world.merged[-1:] == [world.put]


def test_without_a_fault_nothing_is_asked_for_twice(world):
    here = world(1 << 20)
    for _ in range(10):
        here.produce()
        here.pump()
        here.deliver()
        here.store()
    settle(here)
    assert here.merged == list(range(1, 11))
    assert [member.ledger.duplicates for member in here.service.members] == [0]
