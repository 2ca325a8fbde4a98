"""What single faults come to: what is counted, what is said, and that nothing else happens."""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict

import fleet
import numpy as np
import oracle
import pytest
from plan import LAST_STEP, WORLD_SIZE, FaultPlan
from worker import values_of

from aggregator.sinks import run_file
from launch.cli import main
from launch.summary import summary
from rankside.eventreader import event_files

pytestmark = pytest.mark.real

# Ranks leave when everything is merged, however busy the machine: else they would give a slow aggregator up.
_MERGED_LIVE = FaultPlan().await_merged(step=LAST_STEP)


@pytest.fixture
def carry_out(tmp_path, socket_folder):
    """Return a function that carries out a plan, and holds the merged curves to the rank files."""
    with contextlib.ExitStack() as stack:

        def carry_out(plan, *, compared=True, **steps):
            if any(hasattr(fault, "side") for fault in plan.faults) and not fleet.mounting_works(tmp_path):
                pytest.skip("filling a disk needs the right to mount one")
            outcome = stack.enter_context(fleet.run(plan, tmp_path, sockets=socket_folder, **steps))
            print(outcome.run_json, outcome.counters, outcome.log, sep="\n")
            assert set(outcome.exit_codes) == {0}
            assert outcome.aggregator_code == 0
            if compared:
                right = oracle.expected(outcome.run_dir)
                oracle.compare(outcome.run_dir, right)
                oracle.compare(outcome.run_dir, right, outcome.watched)
            return outcome

        yield carry_out


def test_without_a_fault_nothing_is_counted_and_the_live_merge_stands(carry_out):
    outcome = carry_out(_MERGED_LIVE)
    assert outcome.run_json["merged_from"] == "live"
    assert not any(outcome.run_json["counts"].values())
    assert outcome.run_json["ranks"] == {"live": [], "left": list(range(WORLD_SIZE)), "lost": []}


def test_lost_blocks_are_sent_again_in_time(carry_out):
    outcome = carry_out(_MERGED_LIVE.drop(rank=2, step=50, count=40))
    assert outcome.run_json["merged_from"] == "live"


def test_doubled_blocks_are_dropped_and_counted(carry_out):
    outcome = carry_out(_MERGED_LIVE.duplicate(rank=1, step=50, count=30))
    assert outcome.run_json["merged_from"] == "live"
    assert outcome.run_json["counts"]["duplicates"] >= 30


def test_blocks_that_overtake_each_other_are_put_in_order(carry_out):
    outcome = carry_out(_MERGED_LIVE.reorder(rank=0, step=50, count=10).reorder(rank=3, step=90, count=1))
    assert outcome.run_json["merged_from"] == "live"


def test_a_cut_connection_is_made_again_and_loses_nothing(carry_out):
    outcome = carry_out(_MERGED_LIVE.cut(rank=0, step=40, seconds=0.0).cut(rank=3, step=80, seconds=0.7))
    assert outcome.run_json["merged_from"] == "live"
    assert outcome.run_json["counts"]["strangers"] >= 2


def test_a_killed_rank_is_named_and_what_it_wrote_stays(carry_out):
    outcome = carry_out(FaultPlan().kill(rank=2, step=60))
    assert outcome.run_json["ranks"]["lost"] == [2]
    assert outcome.run_json["because"] == ["not heard to the end: rank 2"]


def test_an_aggregator_that_comes_back_continues_the_merged_files_where_they_end(carry_out):
    plan = FaultPlan().kill_aggregator(step=40).await_merged(step=80).kill_aggregator(step=120)
    outcome = carry_out(plan.await_merged(step=LAST_STEP))
    oracle.compare(outcome.live, oracle.expected(outcome.run_dir))


def test_ranks_that_leave_while_the_aggregator_is_started_again_wait_for_it(carry_out):
    plan = FaultPlan().await_merged(step=LAST_STEP - 10)
    outcome = carry_out(plan.kill_aggregator(step=LAST_STEP - 8))
    assert outcome.run_json["ranks"] == {"live": [], "left": list(range(WORLD_SIZE)), "lost": []}


def test_blocks_that_a_full_buffer_dropped_are_counted_and_filled_from_the_files(carry_out):
    plan = FaultPlan().freeze_aggregator()
    for rank in range(WORLD_SIZE):
        plan = plan.rank(rank, buffer_bytes=2_000)
    outcome = carry_out(plan)
    assert all(counted["unsent"] > 0 for counted in outcome.counters)
    assert outcome.run_json["merged_from"] == "files"


def test_a_frozen_rank_is_waited_for(carry_out):
    outcome = carry_out(_MERGED_LIVE.freeze(rank=1, step=60, seconds=2.0))
    assert outcome.run_json["merged_from"] == "live"


def test_late_values_are_counted_and_filled_from_the_files(carry_out):
    outcome = carry_out(FaultPlan().freeze(rank=1, step=60, seconds=2.0).waiting(seconds=0.3))
    assert outcome.run_json["merged_from"] == "files"
    assert outcome.run_json["counts"]["late"] > 0
    assert outcome.run_json["counts"]["incomplete"] > 0


def test_a_restart_from_a_checkpoint_reopens_the_steps_behind_it(carry_out):
    outcome = carry_out(FaultPlan().restart_all(rank=3, step=120, checkpoint=70))
    assert outcome.run_json["counts"]["reopened"] >= 1


@pytest.mark.parametrize("restarted", [{0, 1, 2, 3}, {1}], ids=["all ranks", "one rank"])
def test_the_first_window_behind_a_restart_holds_the_steps_of_this_start_only(carry_out, restarted):
    plan, checkpoint = FaultPlan().await_merged(step=10), 7
    for rank in range(WORLD_SIZE):
        plan = plan.rank(rank, every=5)
    restart = plan.restart_all if len(restarted) == WORLD_SIZE else plan.restart
    run_dir = carry_out(restart(rank=1, step=14, checkpoint=checkpoint)).run_dir
    windows = defaultdict(list)  # the ranks' losses of the steps that are reported at a step
    for rank in range(WORLD_SIZE):
        reader = oracle.open_run(run_dir / f"rank_{rank}")
        reader.Reload()
        previous = 0
        for end, _ in oracle.scalars(reader)["loss"]:
            life = int(rank in restarted and end > checkpoint)
            first = max(previous, checkpoint if life else 0) + 1
            windows[end] += [values_of(rank, step, life)["loss"] for step in range(first, end + 1)]
            previous = end
    assert {1, 5, 10, 15, 200} <= set(windows)
    right = oracle.expected(run_dir)
    for name in oracle.STATISTICS:
        numbers = {step: getattr(np.array(values), name)() for step, values in windows.items()}
        assert right[name]["loss"] == pytest.approx(numbers, rel=1e-6, abs=2e-7)


def test_ranks_that_a_smaller_world_lacks_end_at_the_checkpoint(carry_out):
    outcome = carry_out(FaultPlan().restart_all(rank=0, step=120, checkpoint=70, world_size=2))
    seen = oracle.expected(outcome.run_dir)[""]["loss/ranks_seen"]
    assert [seen[step] for step in range(71, LAST_STEP + 1)] == [2] * (LAST_STEP - 70)


def test_a_merge_leaves_out_what_is_void_of_ranks_whose_disk_the_smaller_world_has_not(carry_out):
    """Nobody ends their files there, which are brought together with the others' afterwards."""
    run_dir = carry_out(FaultPlan().restart_all(rank=0, step=120, checkpoint=70, world_size=2)).run_dir
    right = oracle.expected(run_dir)
    for rank in (2, 3):
        _, *written_by_another = event_files(run_dir / f"rank_{rank}")
        for path in written_by_another:
            path.unlink()
    assert oracle.expected(run_dir)[""]["loss/ranks_seen"][80] == WORLD_SIZE
    assert main(["merge", str(run_dir)]) == 0
    oracle.compare(run_dir, right)


def test_of_a_step_reported_twice_the_last_value_wins_and_it_is_counted(carry_out):
    counts = carry_out(FaultPlan().rank(2, repeated=80)).run_json["counts"]
    assert counts["late"] + counts["repeated"] > 0


def test_a_disk_that_fills_under_a_rank_to_the_end_costs_the_live_merge_nothing(carry_out):
    plan = FaultPlan().fill_disk(side="rank", rank=1, step=100, seconds=None)
    outcome = carry_out(plan, compared=False)
    assert outcome.run_json["counts"]["unwritten"] > 0
    reader = oracle.open_run(outcome.run_dir / "merged")
    reader.Reload()
    assert oracle.scalars(reader)["loss/ranks_seen"] == [(s, 4.0) for s in range(1, LAST_STEP + 1)]


def test_a_merge_from_the_files_keeps_what_only_the_live_one_has_behind_a_full_disk(carry_out):
    plan = FaultPlan().await_merged(step=50).kill(rank=2, step=60)
    plan = plan.fill_disk(side="rank", rank=1, step=100, seconds=None)
    run_dir = carry_out(plan, compared=False).run_dir
    for _ in range(2):
        assert run_file.read(run_dir / "run.json")["merged_from"] == "files"
        readers = {name: oracle.open_run(run_dir / "merged" / name) for name in ("", "mean", "std")}
        for reader in readers.values():
            reader.Reload()
        runs = {
            name: dict(oracle.scalars(reader)["loss" if name else "loss/ranks_seen"])
            for name, reader in readers.items()
        }
        assert all(runs[""][step] == WORLD_SIZE for step in range(1, 51))
        assert sorted(runs[""]) == list(range(1, LAST_STEP + 1))
        for step in range(61, LAST_STEP + 1):
            losses = np.array([values_of(rank, step, 0)["loss"] for rank in (0, 1, 3)])
            assert runs[""][step] == 3
            assert runs["mean"][step] == pytest.approx(losses.mean(), rel=1e-6)
            assert runs["std"][step] == pytest.approx(losses.std(), rel=1e-6, abs=2e-7)
        assert main(["merge", str(run_dir)]) == 0


def test_a_disk_that_fills_under_the_aggregator_to_the_end_is_said(carry_out):
    plan = FaultPlan().fill_disk(side="aggregator", rank=1, step=100, seconds=None)
    outcome = carry_out(plan, compared=False)
    assert "merged curves: merging from the rank files failed" in outcome.log
    assert "No space left on device" in outcome.log
    assert f"`crossrank merge {outcome.run_dir}` completes it" in outcome.log
    assert not list(outcome.run_dir.rglob("*.part"))
    told = "\n".join(summary(outcome.run_dir, complete=True))
    assert "how the run ended could not be written" in told
    assert f"complete them with: crossrank merge {outcome.run_dir}" in told
    (outcome.run_dir / "filler").unlink()
    assert main(["merge", str(outcome.run_dir)]) == 0
    oracle.compare(outcome.run_dir, oracle.expected(outcome.run_dir))
    assert "could not be written" not in "\n".join(summary(outcome.run_dir, complete=True))


def test_a_run_is_continued_on_another_day_behind_a_merge_by_hand(carry_out):
    """Its merged curves are then those of both days, and the second day needs no merge from the files."""
    run_dir = carry_out(FaultPlan().await_merged(step=60), last_step=60).run_dir
    assert main(["merge", str(run_dir)]) == 0
    outcome = carry_out(FaultPlan().await_merged(step=90), first_step=60, last_step=90)
    assert outcome.run_json["merged_from"] == "live"
    assert set(oracle.expected(run_dir)["mean"]["loss"]) == set(range(1, 91))


def test_a_run_is_continued_from_inside_the_window_that_its_first_report_ends(carry_out):
    carry_out(FaultPlan().await_merged(step=58), last_step=58)
    plan = FaultPlan()
    for rank in range(WORLD_SIZE):
        plan = plan.rank(rank, every=10)
    run_dir = carry_out(plan.await_merged(step=90), first_step=55, last_step=90).run_dir
    steps = oracle.expected(run_dir)["mean"]["loss"]
    assert sorted(steps) == [*range(1, 56), 60, 70, 80, 90]


def test_counts_outlive_the_aggregator(carry_out):
    plan = FaultPlan().duplicate(rank=1, step=10, count=30).await_merged(step=100)
    plan = plan.kill_aggregator(rank=1, step=120).await_merged(step=LAST_STEP)
    outcome = carry_out(plan)
    assert outcome.run_json["counts"]["duplicates"] >= 30
    assert json.loads((outcome.run_dir / "run.json").read_text())["merged_from"] == "files"
