"""Relays between ranks and root: every figure is the one without relays, whatever is lost, repeated or killed."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from relay_world import INCARNATION, ROOT, World, values_of

from aggregator.live.relay import Relay
from rankside import messages, window, wire
from rankside.tags import Tag


@st.composite
def topologies(draw):
    """Relays on earlier relays or the root, and ranks on any of them."""
    parents = [draw(st.integers(ROOT, i - 1)) for i in range(draw(st.integers(1, 4)))]
    places = draw(st.lists(st.integers(ROOT, len(parents) - 1), min_size=1, max_size=6))
    return parents, places


seeds = st.integers(0, 2**32)
actions = st.lists(
    st.one_of(
        st.just(("produce",)),
        st.tuples(st.just("move"), st.one_of(st.none(), seeds)),
        st.just(("store",)),
        st.tuples(st.just("reconnect"), st.integers(0, 9)),
        st.tuples(st.just("kill_relay"), st.integers(0, 3)),
        st.just(("kill_root",)),
    ),
    max_size=50,
)


def expected_figures(ranks, step):
    """Mean, std, min, max, ranks seen, and rank of the maximum by tag, straight from what the ranks reported."""
    reported = [values_of(rank, step) for rank in range(ranks)]
    figures = {}
    for tag in {tag for values in reported for tag in values}:
        column = np.array([values.get(tag, np.nan) for values in reported])
        finite = column[np.isfinite(column)]
        seen = sum(tag in values for values in reported)
        if len(finite):
            figures[tag] = (
                finite.mean(),
                finite.std(),
                finite.min(),
                finite.max(),
                seen,
                np.nanargmax(column),
            )
        else:
            figures[tag] = (np.nan, np.nan, np.nan, np.nan, seen, -1)
    return figures


def figures_of(world, step):
    names, merged = world.merged[step]
    rows = zip(
        merged.mean, merged.std, merged.minimum, merged.maximum, merged.ranks_seen, merged.rank_of_max,
        strict=True,
    )  # fmt: skip
    return dict(zip(names, rows, strict=True))


def assert_every_step_is_merged_once(world):
    steps = max(world.put)
    assert world.closed == list(range(1, steps + 1))
    for step in range(1, steps + 1):
        found, expected = figures_of(world, step), expected_figures(len(world.places), step)
        assert found.keys() == expected.keys()
        for tag, numbers in expected.items():
            assert np.allclose(found[tag], numbers, rtol=1e-12, atol=1e-14, equal_nan=True), (step, tag)


@settings(max_examples=300, deadline=None)
@given(topologies(), actions)
def test_every_step_is_merged_once_with_the_figures_of_all_ranks_whatever_happens(topology, plan):
    with pytest.MonkeyPatch.context() as patch:
        world = World(patch, parents=topology[0], places=topology[1])
        for name, *arguments in plan:
            getattr(world, name)(*arguments)
            for forgotten, stored in world.acknowledged():
                assert forgotten <= stored, "a rank was acknowledged what the root had not stored"
        world.settle()
        assert [uplink.refusal for uplink in world.uplinks] == [""] * len(world.uplinks)
        assert_every_step_is_merged_once(world)
        assert world.delivered()
        assert world.service.lost == 0


@settings(max_examples=30, deadline=None)
@given(topologies())
def test_figures_are_bit_for_bit_those_without_relays(topology):
    worlds = []
    with pytest.MonkeyPatch.context() as patch:
        for parents, places in (topology, ([], [ROOT] * len(topology[1]))):
            world = World(patch, parents=parents, places=places)
            for _ in range(8):
                world.produce()
                world.move()
            world.settle()
            worlds.append(world)
    relayed, direct = worlds
    assert relayed.closed == direct.closed == list(range(1, 9))
    for step in direct.closed:
        one, other = figures_of(relayed, step), figures_of(direct, step)
        assert one.keys() == other.keys()
        for tag, numbers in one.items():
            assert np.array(numbers, np.float64).tobytes() == np.array(other[tag], np.float64).tobytes()


@pytest.fixture
def chain(monkeypatch):
    """Two ranks behind a relay behind a relay, and one beside it; all of them are served."""
    world = World(monkeypatch, parents=[ROOT, 0], places=[1, 1, ROOT])
    world.produce()
    world.settle()
    assert world.closed == [1]
    return world


class Stranger:
    """A peer of the inner relay that says what the test wants."""

    def __init__(self, world):
        self.world = world
        self.answers = []
        down = world._send_down
        world._send_down = lambda node, identity, payload: (
            self.answers.append(wire.decode(payload)) if identity == b"stranger" else None,
            down(node, identity, payload),
        )

    def say(self, *said):
        for message in said:
            payload = message if isinstance(message, bytes) else wire.encode(message)
            self.world.take(1, b"stranger", payload)


def serves_on(world):
    world.produce()
    world.settle()
    assert_every_step_is_merged_once(world)
    assert world.delivered()


def hello(rank, incarnation=INCARNATION, world_size=3):
    return messages.Hello("run", rank, incarnation, world_size, "elsewhere", 1, {})


def block(rank, incarnation, sequence, ids=(0,)):
    columns = window.single(np.ones((1, len(ids))))
    row = np.array([[rank, incarnation, sequence]], np.int64)
    return messages.Block(2, row, np.zeros(1), np.array(ids, np.int64), columns)


def test_a_refused_rank_behind_relays_hears_why_and_its_neighbours_are_served(chain):
    stranger = Stranger(chain)
    stranger.say(hello(0, INCARNATION - 1))
    for _ in range(4):
        chain.move()
    refusals = [answer for answer in stranger.answers if isinstance(answer, messages.Refused)]
    assert [(r.rank, r.incarnation) for r in refusals] == [(0, INCARNATION - 1)]
    assert "later start" in refusals[0].reason
    serves_on(chain)


TAGS = messages.Tags(0, (Tag("loss"), Tag("own")))
BAD_PEERS = {
    "garbage": [b"\x00\xff garbage"],
    "nothing": [b""],
    "unknown kind": [msgpack.packb([99])],
    "a message that goes downward": [hello(0, 1), messages.Refused(0, INCARNATION, "go away")],
    "a tag twice": [hello(0, 1), messages.Tags(0, (Tag("loss"), Tag("loss"))), block(0, 1, 1, ids=(0, 1))],
}


@pytest.mark.parametrize("said", BAD_PEERS.values(), ids=BAD_PEERS.keys())
def test_a_bad_peer_behind_relays_is_refused_and_its_neighbours_are_served(chain, said):
    stranger = Stranger(chain)
    stranger.say(*said)
    chain.move()
    assert any(isinstance(answer, messages.Refused) for answer in stranger.answers)
    serves_on(chain)


def test_a_peer_that_names_tags_without_end_is_refused_and_its_neighbours_are_served(chain):
    stranger = Stranger(chain)
    stranger.say(hello(0, 1))
    for part in range(2):
        names = (Tag(f"{part}/{i}") for i in range(messages.TAG_LIMIT // 2))
        stranger.say(messages.Tags(part * messages.TAG_LIMIT // 2, tuple(names)))
    assert isinstance(stranger.answers[-1], messages.Refused)
    serves_on(chain)


IMPOSTORS = {
    "blocks": [hello(0, 1), TAGS, block(0, INCARNATION, 2), block(1, INCARNATION, 2)],
    "a heartbeat": [hello(0, 1), messages.Heartbeat((messages.Beat(0, INCARNATION, 99, 99, 99, "", 0.0),))],
    "a goodbye": [hello(0, 1), messages.Goodbye(0, INCARNATION, 99, "")],
}


@pytest.mark.parametrize("said", IMPOSTORS.values(), ids=IMPOSTORS.keys())
def test_who_speaks_for_its_neighbour_behind_a_relay_is_not_heard(chain, said):
    Stranger(chain).say(*said)
    chain.move()
    serves_on(chain)
    assert chain.service.lost == 0


@pytest.mark.parametrize(
    "kind", [messages.Hello, messages.Tags, messages.Block, messages.Heartbeat, messages.Join]
)
def test_one_message_of_any_kind_that_gets_lost_between_relay_and_root_is_made_good(monkeypatch, kind):
    world = World(monkeypatch, parents=[ROOT], places=[0, 0])
    send, lost = world.relay_wires[0].send, []

    def lose_first(payload):
        if not lost and isinstance(wire.decode(payload), kind):
            lost.append(payload)
            return True
        return send(payload)

    world.relay_wires[0].send = lose_first
    world._start_relay(0)
    for _ in range(3):
        world.produce()
        world.move()
    world.settle()
    assert lost
    assert_every_step_is_merged_once(world)
    assert world.delivered()


def test_without_a_fault_nothing_is_sent_twice_through_relays(chain):
    duplicates = [member.ledger.duplicates for member in chain.service.members]
    for _ in range(10):
        chain.produce()
        chain.move()
    chain.settle()
    assert_every_step_is_merged_once(chain)
    assert [member.ledger.duplicates for member in chain.service.members] == duplicates
    assert [relay.unsent + relay.foreign for relay in chain.relays] == [0, 0]


def open_relay(*ranks):
    """A relay that these ranks have opened connections to, and what it sends up from now on."""
    sent = []
    relay = Relay(
        send_down=lambda *_: None, send_up=lambda payload: sent.append(wire.decode(payload)) or True
    )
    relay.take_up(wire.encode(messages.Welcome("run")))
    for rank in ranks:
        for message in (hello(rank), TAGS):
            relay.take_down(b"%d" % rank, wire.encode(message), now=0.0)
    sent.clear()
    return relay, sent


def kinds(said):
    return [type(message) for message in said]


def test_a_block_that_waits_for_other_ranks_goes_before_the_heartbeat_that_names_it():
    relay, sent = open_relay(0, 1)
    relay.take_down(b"0", wire.encode(block(0, INCARNATION, 1)), now=0.0)
    relay.pump(now=0.0)
    assert sent == []
    relay.take_down(
        b"0", wire.encode(messages.Heartbeat((messages.Beat(0, INCARNATION, 1, 1, 1, "", 0.0),))), now=0.1
    )
    relay.pump(now=0.1)
    assert kinds(sent) == [messages.Tags, messages.Block, messages.Heartbeat]


def test_the_rows_of_all_ranks_go_up_as_one_block_as_soon_as_they_are_there():
    relay, sent = open_relay(0, 1)
    for rank in (0, 1):
        relay.take_down(b"%d" % rank, wire.encode(block(rank, INCARNATION, 1)), now=0.0)
    relay.pump(now=0.0)
    assert kinds(sent) == [messages.Tags, messages.Block]
    assert sent[-1].rows.tolist() == [[0, INCARNATION, 1], [1, INCARNATION, 1]]


def test_a_rank_that_says_nothing_holds_the_others_up_for_a_moment_only():
    relay, sent = open_relay(0, 1)
    relay.take_down(b"0", wire.encode(block(0, INCARNATION, 1)), now=0.0)
    relay.pump(now=0.1)
    assert sent == []
    relay.pump(now=1.0)
    assert kinds(sent) == [messages.Tags, messages.Block]


def test_a_block_is_sent_before_it_grows_beyond_what_a_message_may_hold():
    ranks, tags = 8, 40_000
    relay, sent = open_relay()
    for rank in range(ranks):
        columns = window.single(np.ones((1, tags)))
        row = np.array([[rank, INCARNATION, 1]], np.int64)
        wide = messages.Block(1, row, np.zeros(1), np.arange(tags), columns)
        for message in (
            hello(rank, world_size=ranks),
            messages.Tags(0, tuple(Tag(f"{i}") for i in range(tags))),
            wide,
        ):
            relay.take_down(b"%d" % rank, wire.encode(message), now=0.0)
    relay.flush()
    blocks = [message for message in sent if isinstance(message, messages.Block)]
    assert sum(len(each.rows) for each in blocks) == ranks
    assert max(len(wire.encode(message)) for message in sent) < wire.MESSAGE_LIMIT_BYTES / 4


def test_nonsense_from_the_root_is_ignored():
    relay, _ = open_relay(0)
    relay.take_up(b"\xc1")
    assert relay.joined
