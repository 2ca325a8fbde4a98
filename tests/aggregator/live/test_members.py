"""Who is given up, and when: on a clock and with processes that only the test knows."""

from __future__ import annotations

from aggregator.live.members import Members, Patience
from rankside import messages


def members_heard_at(*times: float, machines: tuple[str, ...] = ()) -> Members:
    members = Members(Patience(suspect_seconds=3.0, lost_seconds=15.0))
    for rank, heard in enumerate(times):
        machine = machines[rank] if machines else "here"
        members.enter(messages.Hello("run", rank, 1, len(times), machine, 100 + rank, {}), b"", now=heard)
    return members


def lost(members: Members, *, now: float, ended: set[int]) -> list[int]:
    """ended: the ranks whose process has ended."""
    found = members.lose_silent(
        now=now, machine="here", ended=lambda pid: now if pid - 100 in ended else None
    )
    return [member.hello.rank for member in found]


def test_a_rank_of_this_machine_is_given_up_when_it_is_silent_and_its_process_has_ended() -> None:
    assert lost(members_heard_at(0, 3), now=4, ended={0}) == [0]


def test_a_silent_rank_whose_process_runs_is_not_given_up() -> None:
    assert lost(members_heard_at(0, 3), now=60, ended=set()) == []


def test_processes_that_have_ended_are_given_up_together_whenever_they_were_last_heard() -> None:
    assert lost(members_heard_at(0.3, 1.5, 0.9), now=3.5, ended={0, 1}) == [0, 1]


def test_a_rank_elsewhere_is_given_up_after_long_silence_only() -> None:
    members = members_heard_at(0, 10, machines=("there", "there"))
    assert lost(members, now=14, ended={0, 1}) == []
    assert lost(members, now=16, ended={0, 1}) == [0]


def test_a_rank_that_has_just_finished_a_step_is_not_said_to_be_long_in_the_phase_before_it() -> None:
    members = members_heard_at(0)
    member = members.get(0, 1)
    assert member is not None
    member.take_beat(messages.Beat(0, 1, 1, 5, 179, "in the step", 8.0), now=10.0)
    assert member.phase_since == 2.0
    member.take_step(180, now=10.5)
    assert (member.step, member.phase_since) == (180, 10.5)
    member.take_step(178, now=11.0)
    assert (member.step, member.phase_since) == (180, 10.5)
