"""What a rank makes of the aggregator's advice."""

from __future__ import annotations

from rankside.adviser import Adviser
from rankside.messages import Advice, Place
from rankside.schedule import Schedule


def _advice(**values):
    nothing = {"dense_until": -1, "stacks": 0, "stop": "", "step": 0, "places": ()}
    return Advice(1, 0, **(nothing | values))


def test_a_rank_is_told_who_is_lowest_and_highest_and_what_is_the_same_everywhere():
    adviser = Adviser(1, Schedule())
    places = (Place("loss", 0.5, 0.25, 0.75, 3, 1), Place("grad-norm", 2.0, 2.0, 2.0, 0, 0))
    adviser.follow(_advice(step=7, places=places))
    assert adviser.standing == (
        "all ranks at step 7: loss 0.5 (0.25 rank 3, 0.75 this rank); grad-norm 2 everywhere"
    )
    adviser.follow(_advice(step=8))  # says nothing about the others: the last word stands
    assert adviser.standing.startswith("all ranks at step 7")


def test_dense_steps_are_never_taken_back():
    schedule = Schedule(10)
    adviser = Adviser(1, schedule)
    for until in (50, 40):
        adviser.follow(_advice(dense_until=until))
    assert adviser.dense_until == 50
    assert schedule.ends_window(50, 49)
    assert not schedule.ends_window(51, 50)


def test_stacks_are_written_once_for_each_time_they_are_asked_for(tmp_path):
    adviser = Adviser(1, Schedule())
    adviser.folder = tmp_path
    for asked in (1, 1, 2):
        adviser.follow(_advice(stacks=asked))
    files = sorted(tmp_path.glob("stacks-*.txt"))
    assert len(files) == 2
    assert all("test_stacks_are_written_once" in file.read_text() for file in files)


def test_the_wish_to_stop_is_handed_on():
    adviser = Adviser(1, Schedule())
    adviser.follow(_advice(stop="loss NaN"))
    assert adviser.stop == "loss NaN"
