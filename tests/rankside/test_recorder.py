"""The recorder in a training loop: whatever goes wrong, training goes on and the rank's file has what was logged."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from rankside.config import RankConfig
from rankside.record import RecordReader
from rankside.recorder import Recorder
from rankside.tags import Tag


@pytest.fixture
def run_dir(tmp_path):
    return tmp_path / "run"


def record(run_dir, steps=range(1, 101), *, log=None, start=0, failed=None, **settings):
    recorder = Recorder(RankConfig(run_dir=run_dir, **settings))
    recorder.start(initial_step=start)
    for step in steps:
        recorder.log(step, log(step) if log else {"loss": step / 4})
    recorder.finish(failed=failed)
    return recorder


def read(run_dir, tag="loss", rank=0):
    """Return [(step, value)] as TensorBoard shows them."""
    accumulator = EventAccumulator(str(run_dir / f"rank_{rank}"), {"scalars": 0})
    accumulator.Reload()
    if tag not in accumulator.Tags()["scalars"]:
        return []
    return [(event.step, event.value) for event in accumulator.Scalars(tag)]


def test_without_an_aggregator_the_file_is_whole_and_finish_comes_back(run_dir, socket_folder):
    recorder = record(run_dir, endpoint=f"ipc://{socket_folder}/nobody")
    assert read(run_dir) == [(step, step / 4) for step in range(1, 101)]
    assert not recorder.counters["failed"]


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:*", "nonsense", "tcp://10.0.0.1:5"])
def test_an_endpoint_that_cannot_be_used_leaves_the_file_whole_and_is_counted(run_dir, endpoint):
    recorder = record(run_dir, endpoint=endpoint)
    assert len(read(run_dir)) == 100
    assert recorder.counters["failed"] == 1


def test_a_folder_that_cannot_be_made_disturbs_nothing_and_is_counted(tmp_path):
    (tmp_path / "file").write_text("in the way")
    recorder = record(tmp_path / "file" / "run")
    assert recorder.counters["failed"] == 1


def test_a_full_queue_drops_what_is_newest_and_counts_it(run_dir, within):
    recorder = Recorder(RankConfig(run_dir=run_dir, queue_limit=10))
    gate = threading.Event()
    taken = threading.Event()
    recorder.start()
    recorder.log(1, {"loss": lambda: taken.set() or float(gate.wait(30))})
    within(taken.is_set)
    for step in range(2, 102):
        recorder.log(step, {"loss": 0.0})
    gate.set()
    recorder.finish()
    assert [step for step, _ in read(run_dir)] == list(range(1, 12))
    assert recorder.counters["dropped"] == 90


def test_a_callable_that_raises_is_counted_and_the_others_are_recorded(run_dir):
    def broken():
        raise RuntimeError("broken")

    recorder = Recorder(RankConfig(run_dir=run_dir))
    recorder.start()
    for step in range(1, 6):
        recorder.log(
            step,
            {"bad": broken, "good": lambda: 1.0, "text": "x", "": 1.0, "a\nb": 1.0, 5: 1.0, "x" * 600: 1.0},
            deferred=[broken, lambda: {"late": np.array([2.0], np.float32), "none": None}],
        )
    recorder.log(-1, {"good": 1.0})
    recorder.log("six", {"good": 1.0})
    recorder.log(np.int64(7), {"good": np.float32(3.0)})
    recorder.record(3, broken)
    recorder.record_event(broken)
    recorder.finish()
    assert read(run_dir, "good") == [*((step, 1.0) for step in range(1, 6)), (7, 3.0)]
    assert read(run_dir, "late") == [(step, 2.0) for step in range(1, 6)]
    assert recorder.counters["failed"] == 5 * 8 + 4


def test_every_method_does_nothing_in_the_scheduler_process(run_dir):
    before = set(threading.enumerate())
    recorder = Recorder(RankConfig(run_dir=run_dir, active=False))
    recorder.start()
    recorder.log(1, {"loss": 1.0})
    recorder.report(1, {"loss": 1.0})
    recorder.describe(Tag("x"))
    recorder.phase("x")
    recorder.flush()
    assert set(threading.enumerate()) <= before
    recorder.finish()
    assert not run_dir.exists()


def test_a_forked_child_leaves_the_parents_file_alone(run_dir):
    recorder = Recorder(RankConfig(run_dir=run_dir))
    recorder.start()
    recorder.log(1, {"loss": 1.0})
    child = os.fork()
    if child == 0:
        recorder.log(2, {"loss": 666.0})
        recorder.flush()
        recorder.finish()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    recorder.log(3, {"loss": 3.0})
    recorder.finish()
    assert read(run_dir) == [(1, 1.0), (3, 3.0)]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_in_the_file_at_once(run_dir, within, value):
    recorder = Recorder(RankConfig(run_dir=run_dir, flush_seconds=1000.0))
    recorder.start()
    recorder.log(1, {"loss": 1.0})
    recorder.log(2, {"loss": value})
    within(lambda: (run_dir / "rank_0").exists() and len(read(run_dir)) == 2)
    recorder.finish()


def test_a_restart_goes_on_in_the_folder_and_tensorboard_shows_the_newer_points(run_dir):
    record(run_dir, range(1, 11), log=lambda _: {"loss": 1.0})
    record(run_dir, range(6, 13), log=lambda _: {"loss": 2.0}, start=5)
    assert read(run_dir) == [(s, 1.0) for s in range(1, 6)] + [(s, 2.0) for s in range(6, 13)]


def test_beginning_again_at_an_earlier_step_drops_the_void_points(run_dir):
    recorder = Recorder(RankConfig(run_dir=run_dir))
    for start, value in ((0, 1.0), (5, 2.0)):
        recorder.start(initial_step=start)
        for step in range(start + 1, 11):
            recorder.log(step, {"loss": value})
    recorder.finish()
    assert read(run_dir) == [(s, 1.0) for s in range(1, 6)] + [(s, 2.0) for s in range(6, 11)]


@pytest.mark.parametrize("first", [0, 2], ids=["disk of all ranks", "disk of the second node"])
def test_ranks_that_a_smaller_world_lacks_end_on_each_disk_that_has_ranks(run_dir, first):
    for rank in range(first, first + 3):
        record(run_dir, range(1, 11), rank=rank, world_size=first + 3)
    for rank in (first + 1, first):
        record(run_dir, range(6, 13), start=5, rank=rank, world_size=first + 2)
    for rank, last in ((first, 12), (first + 1, 12), (first + 2, 5)):
        assert [step for step, _ in read(run_dir, rank=rank)] == list(range(1, last + 1))


def test_a_windows_last_steps_are_written_at_the_end(run_dir):
    record(run_dir, range(1, 26), every=10)
    assert read(run_dir) == [(1, 0.25), (10, 6 / 4), (20, 15.5 / 4), (25, 23 / 4)]


def test_values_that_are_logged_while_finishing_are_not_lost_behind_a_slow_one(run_dir):
    recorder = Recorder(RankConfig(run_dir=run_dir))
    recorder.start()
    for step in range(1, 2001):
        recorder.log(step, {"loss": float(step)})
    recorder.finish(timeout_seconds=20.0)
    assert len(read(run_dir)) == 2000


def test_a_killed_rank_has_in_its_file_what_was_logged_before_the_last_flush(run_dir, within):
    code = (
        "import sys, time; from pathlib import Path; from rankside import RankConfig, Recorder\n"
        "recorder = Recorder(RankConfig(run_dir=Path(sys.argv[1]), flush_seconds=0.2)); recorder.start()\n"
        "for step in range(1, 51): recorder.log(step, {'loss': 1.0})\n"
        "print('logged', flush=True); time.sleep(60)\n"
    )
    rank = subprocess.Popen([sys.executable, "-c", code, str(run_dir)], stdout=subprocess.PIPE)
    try:
        assert rank.stdout.readline() == b"logged\n"
        within(lambda: (run_dir / "rank_0").is_dir() and len(read(run_dir)) == 50)
    finally:
        rank.send_signal(signal.SIGKILL)
        rank.wait()
        rank.stdout.close()
    assert len(read(run_dir)) == 50
    record(run_dir, range(41, 61), start=40)
    assert [step for step, _ in read(run_dir)] == list(range(1, 61))


def test_what_callbacks_log_one_after_another_for_one_step_is_one_event(run_dir, within):
    recorder = Recorder(RankConfig(run_dir=run_dir))
    recorder.start()
    for step in (1, 2, 3):
        recorder.phase("in a callback")
        taken = threading.Event()
        recorder.log(step, {"loss": lambda taken=taken: taken.set() or 0.5})
        within(taken.is_set)
        recorder.log(step, {"other": 1.0})
        recorder.phase("fetching data")
    recorder.finish()
    (file,) = (run_dir / "rank_0").iterdir()
    events = [event for event in EventFileLoader(str(file)).Load() if event.HasField("summary")]
    assert [(event.step, len(event.summary.value)) for event in events] == [(1, 2), (2, 2), (3, 2)]


def test_a_loop_that_only_logs_is_recorded_whole_and_says_goodbye_at_the_end_of_the_process(run_dir):
    program = (
        "from pathlib import Path\n"
        "from rankside import RankConfig, Recorder\n"
        f"recorder = Recorder(RankConfig(run_dir=Path({str(run_dir)!r})))\n"
        "for step in range(41, 91):\n"
        "    recorder.log(step, {'loss': 1.0 / step})\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert [step for step, _ in read(run_dir)] == list(range(41, 91))


def test_a_child_of_multiprocessing_in_which_a_script_trains_is_recorded_whole(run_dir):
    child = multiprocessing.get_context("fork").Process(target=_log_in_a_child, args=(run_dir,))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert [step for step, _ in read(run_dir)] == list(range(1, 51))


def _log_in_a_child(run_dir):
    recorder = Recorder(RankConfig(run_dir=run_dir))
    for step in range(1, 51):
        recorder.log(step, {"loss": 1.0})


def test_a_run_that_is_continued_keeps_the_steps_before_the_first_one_logged(run_dir):
    for steps in (range(1, 61), range(40, 101)):
        recorder = Recorder(RankConfig(run_dir=run_dir))
        for step in steps:
            recorder.log(step, {"loss": float(steps[0])})
        recorder.finish()
    shown = dict(read(run_dir))
    assert list(shown) == list(range(1, 101))
    assert shown[39] == 1.0
    assert shown[40] == 40.0


def test_what_there_is_no_time_for_at_the_end_is_counted_and_told(run_dir, caplog):
    recorder = Recorder(RankConfig(run_dir=run_dir))
    for step in range(1, 41):
        recorder.log(step, {"loss": lambda: time.sleep(0.05) or 1.0})
    recorder.finish(timeout_seconds=0.5)
    written = [step for step, _ in read(run_dir)]
    assert written == list(range(1, len(written) + 1))
    assert recorder.counters["dropped"] == 40 - len(written) > 0
    assert f"{40 - len(written)} logged entries, the last ones, are not written" in caplog.text


def test_values_that_are_logged_one_by_one_keep_up_with_training(run_dir):
    """Twenty thousand single values are all in the file when the recorder has finished in its usual time."""
    recorder = Recorder(RankConfig(run_dir=run_dir))
    for step in range(1, 401):
        for number in range(50):
            recorder.log(step, {f"own/{number}": float(step)})
    recorder.finish()
    assert not recorder.counters["dropped"]
    assert read(run_dir, "own/49") == [(step, float(step)) for step in range(1, 401)]


class _Tensor:
    """Stands for a parameter of MindSpore, which the next step overwrites in place."""

    def __init__(self, value):
        self.value = value

    def __float__(self):
        return self.value

    def asnumpy(self):
        return np.array(self.value)

    def copy(self):
        return _Tensor(self.value)


@pytest.mark.parametrize("log", [Recorder.log, Recorder.report])
def test_a_loop_may_use_its_map_and_the_arrays_and_parameters_in_it_again_at_once(run_dir, log):
    recorder = Recorder(RankConfig(run_dir=run_dir))
    array, parameter, values = np.zeros(()), _Tensor(0.0), {}
    for step in range(1, 201):
        array[...] = parameter.value = float(step)
        values.update(loss=float(step), array=array, parameter=parameter)
        log(recorder, step, values)
    recorder.finish()
    for tag in values:
        assert read(run_dir, tag) == [(step, float(step)) for step in range(1, 201)]


def test_what_is_no_map_of_values_raises_nothing_and_is_counted(run_dir):
    recorder = Recorder(RankConfig(run_dir=run_dir))
    for values in (None, 3.0, "loss", ["loss"]):
        recorder.log(1, values)
    recorder.log(2, {"loss": 1.0})
    recorder.finish()
    assert read(run_dir) == [(2, 1.0)]
    assert recorder.counters["failed"] == 4


def test_threads_that_log_their_first_values_at_the_same_time_start_one_background_thread(run_dir):
    interval, before = sys.getswitchinterval(), set(threading.enumerate())
    sys.setswitchinterval(1e-6)
    recorder, barrier = Recorder(RankConfig(run_dir=run_dir)), threading.Barrier(8)

    def log(number):
        barrier.wait()
        recorder.log(1, {f"thread/{number}": float(number)})

    threads = [threading.Thread(target=log, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    recorder.finish()
    assert set(threading.enumerate()) <= before
    assert [read(run_dir, f"thread/{number}") for number in range(8)] == [[(1, float(n))] for n in range(8)]


def test_what_is_logged_after_the_end_is_counted_and_told_once_and_a_new_start_records_again(run_dir, caplog):
    recorder = record(run_dir, range(1, 11))
    recorder.log(11, {"loss": 1.0})
    recorder.log(12, {"loss": 1.0})
    assert recorder.counters["dropped"] == 2
    assert caplog.text.count("recording has finished") == 1
    recorder.start(initial_step=12)
    recorder.log(13, {"loss": 1.0})
    recorder.finish()
    assert [step for step, _ in read(run_dir)] == [*range(1, 11), 13]


def test_a_system_without_a_thread_left_is_told_once_and_disturbs_nothing(run_dir, caplog, monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    recorder = record(run_dir)
    assert caplog.text.count("nothing is recorded") == 1
    assert recorder.counters == {"failed": 1, "dropped": 100}


def test_a_relative_folder_is_the_one_of_the_time_when_the_settings_were_made(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    recorder = Recorder(RankConfig(run_dir="run", file_bytes=100))
    recorder.log(1, {"loss": 1.0})
    monkeypatch.chdir(tmp_path / "elsewhere")
    for step in range(2, 101):
        recorder.log(step, {"loss": float(step)})
    recorder.finish()
    assert [step for step, _ in read(tmp_path / "run")] == list(range(1, 101))
    assert not recorder.counters["failed"]


def test_a_folder_that_is_deleted_under_the_process_disturbs_nothing_and_is_counted(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    recorder = record("run")
    assert recorder.counters["failed"] == 1
    assert recorder.counters["unwritten"] == 100


def test_a_background_thread_that_does_not_end_in_time_is_told(run_dir, caplog, within):
    gate, taken = threading.Event(), threading.Event()
    recorder = Recorder(RankConfig(run_dir=run_dir))
    recorder.log(1, {"loss": lambda: taken.set() or gate.wait(60) or 1.0})
    within(taken.is_set)
    recorder.log(2, {"loss": 1.0})
    recorder.finish(timeout_seconds=0.1)
    assert "finishing in time failed" in caplog.text
    gate.set()


def test_what_a_disk_does_not_take_is_counted_and_told_without_an_aggregator_too(run_dir):
    program = (
        "import resource, sys; from pathlib import Path; from rankside import RankConfig, Recorder\n"
        "recorder = Recorder(RankConfig(run_dir=Path(sys.argv[1])))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))\n"
        "for step in range(1, 1001): recorder.log(step, {'loss': 1.0})\n"
        "recorder.finish()\n"
        "print(recorder.counters['unwritten'])\n"
    )
    command = [sys.executable, "-c", program, str(run_dir)]
    done = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True)
    written = len(read(run_dir))
    assert 0 < written < 1000
    assert int(done.stdout) == 1000 - written
    assert f"{1000 - written} events are not in its event file" in done.stderr


def test_an_event_that_takes_long_holds_up_no_values_and_is_written_once_it_is_made(run_dir, within):
    gate = threading.Event()

    def make():
        yield b"\x18\x01"  # a wall time is not needed
        while not gate.is_set():
            yield b""
        yield b"\x2a\x00"

    recorder = Recorder(RankConfig(run_dir=run_dir, flush_seconds=0.1))
    recorder.log(1, {"loss": 1.0})
    recorder.record_event(make)
    for step in range(2, 101):
        recorder.log(step, {"loss": 1.0})
    within(lambda: (run_dir / "rank_0").is_dir() and len(read(run_dir)) == 100)
    gate.set()
    recorder.finish()
    (file,) = (run_dir / "rank_0").iterdir()
    assert list(RecordReader(file))[-1] == b"\x18\x01\x2a\x00"
    assert not recorder.counters["failed"] + recorder.counters["dropped"]


def test_an_event_that_takes_longer_than_the_end_is_counted_and_costs_no_values(run_dir, caplog):
    recorder = Recorder(RankConfig(run_dir=run_dir))
    recorder.record_event(lambda: itertools.repeat(b""))
    recorder.log(1, {"loss": 1.0})
    recorder.finish(timeout_seconds=0.5)
    assert read(run_dir) == [(1, 1.0)]
    assert recorder.counters["dropped"] == 1
    assert "1 logged entries" in caplog.text
