"""The service on a real socket: bad peers are refused and counted, and the ranks beside them are served."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest

from aggregator.align import Aligner
from aggregator.live.service import Service
from rankside import messages, window, wire
from rankside.gather import Report
from rankside.tags import Tag
from rankside.transport import Hub, Link
from rankside.uplink import Uplink

TAGS = [Tag("loss"), Tag("own")]


def hello(rank, *, run="run", incarnation=5, world_size=2, machine="host", pid=1):
    return messages.Hello(run, rank, incarnation, world_size, machine, pid, {})


def block(*rows, step=1, ids=(0,)):
    array = np.array(rows, np.int64)
    columns = window.single(np.ones((len(rows), len(ids))))
    return messages.Block(step, array, np.zeros(len(rows)), np.array(ids, np.int64), columns)


class Bench:
    """A service on a hub, driven by the test in one thread."""

    def __init__(self, folder):
        self.hub = Hub(f"ipc://{folder}/a")
        self.endpoint = f"ipc://{folder}/a"
        self.closers = [self.hub]
        self.now = 0.0
        self.restart()

    def restart(self):
        self.aligner = Aligner(world_size=2, max_wait_seconds=1e9)
        self.service = Service(self.aligner, run="run", world_size=2, send=self.hub.send)
        self.closed = []

    def rank(self, number, **changes):
        uplink = Uplink(
            self.endpoint, hello(number, **changes), TAGS, buffer_bytes=1 << 20, heartbeat_seconds=0.01
        )
        self.closers.append(uplink)
        return uplink

    def peer(self):
        link = Link(self.endpoint)
        self.closers.append(link)
        return link

    def turn(self, *uplinks):
        self.now += 1.0
        for uplink in uplinks:
            uplink.pump(now=self.now, step=1, phase="x", phase_seconds=0.5, wait_seconds=0.005)
        for identity, payload in self.hub.receive(wait_seconds=0.005, at_most=100):
            self.service.take(identity, payload, now=self.now)
        self.closed += [matrix.step for matrix in self.aligner.close(now=self.now)]
        self.service.store()
        getattr(self.service, "acknowledge", lambda: None)()


@pytest.fixture
def bench(socket_folder):
    here = Bench(socket_folder)
    yield here
    for each in reversed(here.closers):
        each.close()


def report(step):
    return Report(step, np.array([0, 1]), window.single(np.array([1.0, 2.0])), 0.0)


def serves(bench, within, ranks, step):
    """Whether a step of these ranks is taken, closed and acknowledged."""
    for rank in ranks:
        rank.put(report(step))

    def done():
        bench.turn(*ranks)
        return step in bench.closed and all(rank.delivered for rank in ranks)

    within(done)


def test_ranks_are_heard_and_their_steps_close(bench, within):
    ranks = [bench.rank(0), bench.rank(1)]
    for step in range(1, 4):
        serves(bench, within, ranks, step)
    assert bench.closed == [1, 2, 3]
    assert [member.phase for member in bench.service.members] == ["x", "x"]
    for rank in ranks:
        rank.say_goodbye("")
    within(lambda: bench.turn() or bench.service.members.all_gone)


def test_a_service_that_starts_anew_gets_everything_that_was_not_acknowledged(bench, within):
    ranks = [bench.rank(0), bench.rank(1)]
    bench.service.store = lambda: None
    for step in range(1, 4):
        serves(bench, within, ranks, step)
    bench.restart()

    def done():
        bench.turn(*ranks)
        return bench.closed == [1, 2, 3]

    within(done)


def leave(rank, *, unanswered):
    """Have the rank begin to leave, with so many signs of life that nobody answers."""
    rank.ask_anew()
    for second in range(unanswered):
        rank.beat(now=float(second), step=1, phase="leaving", phase_seconds=0.0)


def test_a_rank_that_leaves_waits_for_a_service_that_starts_anew(bench, within):
    rank = bench.rank(0, world_size=1)
    bench.service.store = lambda: None
    serves(bench, within, [rank], 1)
    leave(rank, unanswered=60)
    assert rank.responsive
    bench.restart()
    within(lambda: bench.turn(rank) or rank.delivered)


def test_a_rank_that_leaves_does_not_wait_longer_where_everything_is_stored(bench, within):
    rank = bench.rank(0, world_size=1)
    serves(bench, within, [rank], 1)
    within(lambda: bench.turn(rank) or not len(rank._outbox))
    leave(rank, unanswered=60)
    assert not rank.responsive


def test_a_rank_of_another_run_is_refused_and_says_why(bench, within):
    stranger, ranks = bench.rank(0, run="other"), [bench.rank(0), bench.rank(1)]
    within(lambda: bench.turn(stranger) or stranger.refusal)
    assert "serves run run, not other" in stranger.refusal
    serves(bench, within, ranks, 1)


def test_a_rank_of_a_larger_world_than_the_launcher_named_is_refused_and_says_why(bench, within):
    stranger, ranks = bench.rank(1, world_size=3), [bench.rank(0), bench.rank(1)]
    within(lambda: bench.turn(stranger) or stranger.refusal)
    assert "told of 2 ranks, not 3" in stranger.refusal
    serves(bench, within, ranks, 1)
    assert bench.aligner.world_size == 2


def test_connections_do_not_pile_up_when_ranks_come_again_and_again(bench, within):
    for incarnation in range(5, 25):
        uplink = bench.rank(0, incarnation=incarnation)
        within(
            lambda uplink=uplink, incarnation=incarnation: (
                bench.turn(uplink) or bench.service.members.get(0, incarnation)
            )
        )
    assert len(bench.service._sessions) == 1


def test_an_older_start_of_a_rank_is_refused_once_a_newer_one_is_there(bench, within):
    ranks = [bench.rank(0), bench.rank(1)]
    serves(bench, within, ranks, 1)
    older = bench.rank(1, incarnation=4)
    within(lambda: bench.turn(older, *ranks) or older.refusal)
    assert "later start" in older.refusal
    serves(bench, within, ranks, 2)


@pytest.mark.parametrize("incarnation", [4, 5], ids=["an older start", "a start at the same time"])
@pytest.mark.parametrize("machine", ["host", "elsewhere"])
def test_a_second_process_with_the_same_rank_is_named_once_on_either_side(
    bench, within, caplog, incarnation, machine
):
    ranks = [bench.rank(0), bench.rank(1)]
    serves(bench, within, ranks, 1)
    for _ in range(2):
        second = bench.rank(1, incarnation=incarnation, machine=machine, pid=2)
        within(lambda second=second: bench.turn(second, *ranks) or second.refusal)
        serves(bench, within, ranks, bench.closed[-1] + 1)
    first = "process 1" if machine == "host" else "process 1 of another machine"
    what = f"{first} and process 2 both have RANK_ID=1"
    assert bench.service.counters["refused"] == 2
    assert [what in line for line in caplog.messages if line.startswith("refused")] == [True]
    assert what in second.refusal
    assert [what in line for line in caplog.messages if line.startswith("rank 1: the aggregator")] == [
        True
    ] * 2


def test_a_process_whose_rank_a_later_one_has_taken_is_told_so(bench, within):
    ranks = [bench.rank(0), bench.rank(1)]
    serves(bench, within, ranks, 1)
    later = bench.rank(1, incarnation=6, pid=2)
    serves(bench, within, [ranks[0], later], 2)
    within(lambda: bench.turn(ranks[0], later, ranks[1]) or ranks[1].refusal)
    assert "process 2 and process 1 both have RANK_ID=1" in ranks[1].refusal


REFUSED = {
    "the run": (hello(0, run="other"), "refused rank 0: this aggregator serves run run, not other"),
    "the world": (hello(1, world_size=3), "refused rank 1: this aggregator was told of 2 ranks, not 3"),
    "the version": (msgpack.packb([0, 99, *hello(0)[:-1], {}]), "refused a peer: protocol version 99"),
    "nonsense": (b"GET / HTTP/1.1", "refused a peer: "),
}


def test_the_log_tells_apart_why_peers_are_refused_and_says_each_reason_once(bench, within, caplog):
    for count in range(1, 4):
        for said, _ in REFUSED.values():
            assert bench.peer().send(said if isinstance(said, bytes) else wire.encode(said))
        within(lambda count=count: bench.turn() or bench.service.counters["refused"] == count * len(REFUSED))
    lines = [line for line in caplog.messages if line.startswith("refused")]
    assert len(lines) == len(set(lines)) == len(REFUSED)
    for _, line in REFUSED.values():
        assert any(said.startswith(line) for said in lines), line


def test_a_peer_that_is_refused_for_ever_new_reasons_does_not_fill_the_log(bench, within, caplog):
    peer = bench.peer()
    for kind in range(100, 300):
        assert peer.send(msgpack.packb([kind]))
    within(lambda: bench.turn() or bench.service.counters["refused"] == 200)
    assert [line for line in caplog.messages if line.startswith("refused")] == caplog.messages[:100]
    assert caplog.messages[100:] == ["further refusals are only counted"]


def test_a_newer_start_of_a_rank_takes_its_place(bench, within):
    ranks = [bench.rank(0), bench.rank(1)]
    serves(bench, within, ranks, 1)
    serves(bench, within, [ranks[0], bench.rank(1, incarnation=6)], 2)
    assert len(bench.service.members) == 2


INTRODUCTION = [hello(1, incarnation=1), messages.Tags(0, tuple(TAGS))]
BAD_PEERS = {
    "garbage": [b"\x00\xff garbage"],
    "nothing": [b""],
    "invalid after hello": [hello(1, incarnation=1), b"\xc1"],
    "unknown kind": [msgpack.packb([99])],
    "a message that goes downward": [*INTRODUCTION, messages.Unknown()],
    "a tag twice": [
        hello(1, incarnation=1),
        messages.Tags(0, (TAGS[0], TAGS[0])),
        block((1, 1, 1), ids=(0, 1)),
    ],
    "endless nesting": [b"\x91" * 10_000],
}


@pytest.mark.parametrize("said", BAD_PEERS.values(), ids=BAD_PEERS.keys())
def test_a_bad_peer_is_refused_and_counted_and_the_ranks_are_served_on(bench, within, said):
    bad = bench.peer()
    for message in said:
        bad.send(message if isinstance(message, bytes) else wire.encode(message))
    within(lambda: bench.turn() or bench.service.counters["refused"])
    answers = []
    within(lambda: answers.extend(bad.receive(wait_seconds=0.02)) or answers)
    assert isinstance(wire.decode(answers[-1]), messages.Refused)
    serves(bench, within, [bench.rank(0), bench.rank(1)], 1)


UNTIMELY = {
    "block of a rank it does not speak for": [*INTRODUCTION, block((0, 1, 1))],
    "block of an incarnation it does not speak for": [*INTRODUCTION, block((1, 3, 1))],
    "heartbeat of another rank": [
        *INTRODUCTION,
        messages.Heartbeat((messages.Beat(0, 5, 9, 9, 9, "", 0.0),)),
    ],
    "goodbye of another rank": [*INTRODUCTION, messages.Goodbye(0, 5, 9, "")],
}


@pytest.mark.parametrize("said", UNTIMELY.values(), ids=UNTIMELY.keys())
def test_who_speaks_for_another_rank_is_not_heard_and_counted(bench, within, said):
    bad, ranks = bench.peer(), [bench.rank(0), bench.rank(1)]
    serves(bench, within, ranks, 1)
    for message in said:
        bad.send(wire.encode(message))
    within(
        lambda: bench.turn(*ranks) or bench.service.counters["foreign"] or bench.service.counters["refused"]
    )
    serves(bench, within, ranks, 2)
    assert bench.service.lost == 0


@pytest.mark.parametrize(
    "said",
    [
        [hello(1), block((1, 5, 1))],
        [*[hello(1), messages.Tags(0, tuple(TAGS))], block((1, 5, 1), ids=(7,))],
        [hello(1), messages.Tags(3, tuple(TAGS))],
        [messages.Tags(0, tuple(TAGS))],
        [block((1, 5, 1))],
        [messages.Goodbye(1, 5, 3, "")],
    ],
    ids=[
        "block before tags",
        "unknown tag",
        "tags from the middle",
        "tags first",
        "block first",
        "goodbye first",
    ],
)
def test_what_builds_on_a_message_that_is_missing_has_the_peer_begin_again(bench, within, said):
    peer = bench.peer()
    for message in said:
        peer.send(wire.encode(message))
    answers = []

    def asked():
        bench.turn()
        answers.extend(map(wire.decode, peer.receive(wait_seconds=0.01)))
        return messages.Unknown() in answers

    within(asked)
    serves(bench, within, [bench.rank(0), bench.rank(1)], 1)


def test_a_message_of_several_frames_is_refused(bench, within):
    peer = bench.peer()
    peer._socket.send_multipart([wire.encode(hello(1)), wire.encode(INTRODUCTION[1])])
    within(lambda: bench.turn() or bench.service.counters["refused"])
    serves(bench, within, [bench.rank(0), bench.rank(1)], 1)
