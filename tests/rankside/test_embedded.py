"""Without a launcher, the ranks of a job find each other and one aggregator, which ends when they have left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rankside.embedded import make_run_folder

_RANK = """
import sys
from rankside import RankConfig, Recorder
recorder = Recorder(RankConfig.from_environment(logdir="runs", flush_seconds=0.2))
recorder.start()
for step in range(1, 21):
    recorder.log(step, {"loss": step + recorder._config.rank})
print("logged", flush=True)
sys.stdin.readline()
recorder.finish(timeout_seconds=20.0)
"""


class Job:
    """Rank processes with the environment that msrun gives them, in a folder of their own."""

    def __init__(self, folder, port="59999"):
        self.folder = folder
        self.ranks = {}
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("MS_", "RANK_", "CROSSRANK_"))},
            "MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": port, "MS_ROLE": "MS_WORKER", "RANK_SIZE": "3",
            "TMPDIR": str(folder), "PYTHONPATH": str(Path(__file__).parents[2]),
        }  # fmt: skip

    def start(self, *ranks):
        for rank in ranks:
            self.ranks[rank] = subprocess.Popen(
                [sys.executable, "-c", _RANK],
                cwd=self.folder, env=self.environment | {"RANK_ID": str(rank)},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        for rank in ranks:
            assert self.ranks[rank].stdout.readline() == b"logged\n"

    def finish(self, rank):
        process = self.ranks.pop(rank)
        process.communicate(b"\n", timeout=60)
        return process.returncode

    def kill(self, rank):
        process = self.ranks.pop(rank)
        process.send_signal(signal.SIGKILL)
        process.communicate()

    def aggregators(self):
        """Process numbers of the aggregators that serve a run below this folder."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command = path.read_bytes().split(b"\0")
            except OSError:
                continue
            if b"serve" in command and any(str(self.folder).encode() in part for part in command):
                found.append(int(path.parent.name))
        return found

    def runs(self):
        return sorted(path.name for path in (self.folder / "runs").glob("*"))


@pytest.fixture
def job(socket_folder, within):
    job = Job(socket_folder)
    yield job
    for rank in list(job.ranks):
        job.kill(rank)
    for pid in job.aggregators():
        os.kill(pid, signal.SIGKILL)


def scalars(folder):
    accumulator = EventAccumulator(str(folder), {"scalars": 0})
    accumulator.Reload()
    return [(event.step, event.value) for event in accumulator.Scalars("loss")]


def test_three_ranks_share_one_run_folder_and_its_aggregator_ends_after_them(job, within):
    # Neither a folder of these names where training is started, nor a file of a job that is dead, is believed.
    (job.folder / "launch").mkdir()
    (job.folder / "launch" / "__init__.py").write_text("raise SystemExit('not this one')")
    rendezvous = job.folder / f"crossrank-{os.getuid()}"
    rendezvous.mkdir(mode=0o700)
    stale = {"run_dir": "/nowhere", "endpoint": "ipc:///nowhere/a", "pid": os.getpid(), "started": "0"}
    (rendezvous / "127.0.0.1_59999.json").write_text(json.dumps(stale))
    job.start(2, 1, 0)
    within(lambda: len(list((job.folder / "runs").glob("*/rank_*"))) == 3, 60.0)
    assert [job.finish(rank) for rank in (0, 1, 2)] == [0, 0, 0]
    within(lambda: not job.aggregators(), message="the aggregator did not end")
    (run,) = job.runs()
    folder = job.folder / "runs" / run
    assert [scalars(folder / f"rank_{rank}") for rank in range(3)] == [
        [(step, step + rank) for step in range(1, 21)] for rank in range(3)
    ]
    for name, f in {"mean": np.mean, "min": np.min, "max": np.max, "std": np.std}.items():
        expected = [(s, pytest.approx(f([s, s + 1, s + 2]), rel=1e-6)) for s in range(1, 21)]
        assert scalars(folder / "merged" / name) == expected
    content = json.loads((folder / "run.json").read_text())
    assert content["world_size"] == 3
    assert content["tags"]["loss"]["kind"] == "local"
    assert content["run"] == run
    assert content["command"] == [sys.executable, "-c", _RANK]
    assert content["versions"]["numpy"] == np.__version__
    assert datetime.strptime(content["start_time"], "%Y-%m-%dT%H:%M:%S%z") <= datetime.now(timezone.utc)


def test_when_rank_0_is_killed_the_others_finish_and_the_aggregator_ends(job, within):
    job.start(0, 1, 2)
    within(lambda: len(list((job.folder / "runs").glob("*/rank_*/events*"))) == 3, 60.0)
    job.kill(0)
    assert [job.finish(rank) for rank in (1, 2)] == [0, 0]
    within(lambda: not job.aggregators(), 60.0, "the aggregator did not end")
    (run,) = job.runs()
    assert [step for step, _ in scalars(job.folder / "runs" / run / "merged" / "mean")] == list(range(1, 21))


_FAILS_ONCE = """
from rankside import RankConfig, Recorder
recorder = Recorder(RankConfig.from_environment(logdir="runs"))
recorder.start(initial_step=0)
for step in range(1, 11):
    recorder.log(step, {"loss": float(step)})
recorder.finish(failed="RuntimeError: boom", timeout_seconds=20.0)
recorder.start(initial_step=10)
for step in range(11, 21):
    recorder.log(step, {"loss": float(step)})
recorder.finish(timeout_seconds=20.0)
"""


def test_a_process_that_goes_on_after_a_failure_goes_on_in_the_same_run(job, within):
    environment = {k: v for k, v in job.environment.items() if k not in ("RANK_SIZE", "MS_SCHED_HOST")}
    command = [sys.executable, "-c", _FAILS_ONCE]
    subprocess.run(command, cwd=job.folder, env=environment, check=True, timeout=90)
    within(lambda: not job.aggregators(), 60.0, "the aggregator did not end")
    (run,) = job.runs()
    for part in ("rank_0", "merged/mean"):
        assert scalars(job.folder / "runs" / run / part) == [(step, float(step)) for step in range(1, 21)]


# Takes the place of every Python's sitecustomize; what it does to the aggregator, the test says.
_HINDERED = "import os, pathlib, sys, time\nif 'serve' in sys.orig_argv:\n    {hindrance}\n"

_ENDS_SOON = """
import os, resource
from rankside import RankConfig, Recorder
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
before = len(os.listdir("/proc/self/fd"))
recorder = Recorder(RankConfig.from_environment(logdir="runs"))
for step in range(1, 21):
    recorder.log(step, {"loss": float(step)})
recorder.finish(timeout_seconds=2.0)
assert len(os.listdir("/proc/self/fd")) == before
"""


def _run_alone(job, hindrance):
    (job.folder / "hindered").mkdir()
    (job.folder / "hindered" / "sitecustomize.py").write_text(_HINDERED.format(hindrance=hindrance))
    environment = {k: v for k, v in job.environment.items() if k not in ("RANK_SIZE", "MS_SCHED_HOST")}
    environment["PYTHONPATH"] = os.pathsep.join((str(job.folder / "hindered"), environment["PYTHONPATH"]))
    command = [sys.executable, "-c", _ENDS_SOON]
    done = subprocess.run(
        command, cwd=job.folder, env=environment, check=True, timeout=90, capture_output=True, text=True
    )
    (run,) = job.runs()
    return job.folder / "runs" / run, done.stderr


def test_a_training_that_ends_before_the_aggregator_is_up_is_in_the_run_and_merged(job, within):
    run, said = _run_alone(job, "while not pathlib.Path('go').exists(): time.sleep(0.05)")
    expected = [(step, float(step)) for step in range(1, 21)]
    assert scalars(run / "rank_0") == expected
    assert f"recording to {run}" in said
    (job.folder / "go").touch()
    within(lambda: not job.aggregators(), 60.0, "the aggregator did not end")
    assert scalars(run / "merged" / "mean") == expected
    assert not list(job.folder.glob("crossrank-*/*.sock"))


def test_a_rank_whose_aggregator_does_not_start_records_to_the_run_folder_and_says_why(job):
    run, said = _run_alone(job, "sys.exit('no')")
    assert scalars(run / "rank_0") == [(step, float(step)) for step in range(1, 21)]
    assert f"the aggregator did not start; {run / 'aggregator.log'} says why" in said
    assert "SystemExit: no" in (run / "aggregator.log").read_text()
    assert not list(job.folder.glob("crossrank-*"))


def test_trainings_that_start_in_the_same_second_have_folders_of_their_own(tmp_path):
    with ThreadPoolExecutor(16) as pool:
        folders = list(pool.map(lambda _: make_run_folder(tmp_path / "runs", now=0.0), range(64)))
    assert len(set(folders)) == len(list((tmp_path / "runs").iterdir())) == 64
