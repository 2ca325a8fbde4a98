"""Carries out a fault plan on real processes: ranks, an aggregator that is started again when it dies, sockets, disks.

Faults that happen at a rank's step are exact: the rank waits at that step until the fault has been done.
TensorBoard's reader is open on the merged runs from the beginning, as a user's would be.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from oracle import STATISTICS, open_run
from plan import (
    LAST_STEP,
    WORLD_SIZE,
    Await,
    Cut,
    FillDisk,
    Freeze,
    FreezeAggregator,
    Kill,
    KillAggregator,
    Message,
    Rank,
    Restart,
    RestartAll,
)
from proxy import Proxy

from aggregator.sinks import run_file

_HERE = Path(__file__).parent
_STEP_SECONDS = 0.01
_RESTART_SECONDS = 0.2  # until a dead rank is started again
_RESTART_AGGREGATOR_SECONDS = 0.5  # as the launcher does
_RUN_SECONDS = 60.0
_LOOK_SECONDS = 0.4
_SETTLE_SECONDS = 3.0
_DISK_BYTES = 1 << 20


class Outcome(NamedTuple):
    """exit_codes: of the ranks that were not killed, in the order of their starts. counters: what each of them counted.

    live: the run as the aggregator had merged it before it was told that all ranks have ended. watched: the readers
    that were open during the run, by the name of the merged run.
    """

    run_dir: Path
    exit_codes: list[int]
    counters: list[dict[str, int]]
    aggregator_code: int
    run_json: dict
    live: Path
    watched: dict
    log: str


@contextlib.contextmanager
def run(plan, folder, *, sockets, first_step=0, last_step=LAST_STEP):
    """Carry out the plan below `folder`, with sockets in `sockets`, until everything has ended; gives the outcome.

    The run trains from after the first step to the last one; a run that is in the folder already goes on.
    """
    fleet = _Fleet(plan, folder, sockets, first_step, last_step)
    try:
        yield fleet.run()
    finally:
        fleet.clean_up()


class _Worker:
    def __init__(self, settings, log):
        self.settings = settings
        self.step = settings["initial_step"]
        self.said = ""
        self.killed = False
        self.process = subprocess.Popen(
            [sys.executable, str(_HERE / "worker.py"), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            bufsize=1,
        )

    def kill(self):
        self.killed = True
        self.process.kill()

    def go_on(self):
        with contextlib.suppress(OSError):
            self.process.stdin.write("\n")

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


class _Fleet:
    def __init__(self, plan, folder, sockets, first_step, last_step):
        self._plan = plan
        self._first_step = first_step
        self._last_step = last_step
        self._folder = folder
        self._run_dir = folder / "run"
        self._run_dir.mkdir(exist_ok=True)
        self._mounts = []
        self._log = (folder / "log").open("w+")
        self._endpoint = f"ipc://{sockets}/aggregator"
        self._lifeline = os.pipe()
        self._aggregator = None
        self._workers = []
        self._finished = []
        self._timers = []  # (when, what to do)
        self._ready_read = None
        self._held = []  # (step, worker that waits until it is merged)
        self._pending = [f for f in plan.faults if hasattr(f, "step") and not isinstance(f, (Message, Cut))]
        self._pending = [f for f in self._pending if f.step is not None]
        self._lives = 0
        network = [f for f in plan.faults if isinstance(f, (Message, Cut))]
        self._proxy = Proxy(sockets, self._endpoint, network, ranks=WORLD_SIZE) if network else None
        self._watched = {}

    def run(self):
        self._make_disks()
        self._start_aggregator(wait=True)
        if self._plan.of(FreezeAggregator):
            self._aggregator.send_signal(signal.SIGSTOP)
        if self._proxy is not None:
            self._proxy.start()
        self._watched = {name: open_run(self._run_dir / "merged" / name) for name in ("", *STATISTICS)}
        for rank in range(WORLD_SIZE):
            after = sum(f.start_seconds for f in self._plan.of(Rank) if f.rank == rank)
            self._after(after, lambda rank=rank: self._start_worker(rank, self._first_step, WORLD_SIZE))
        deadline = time.monotonic() + _RUN_SECONDS
        next_look = 0.0
        while self._workers or self._timers:
            assert time.monotonic() < deadline, "the ranks did not end in time"
            self._serve_once()
            if time.monotonic() > next_look:
                self._look()
                next_look = time.monotonic() + _LOOK_SECONDS
        code = self._finish()
        if self._proxy is not None:
            self._proxy.stop()
            if self._proxy.failure is not None:
                raise self._proxy.failure
        self._log.flush()
        run_json = json.loads((self._run_dir / "run.json").read_text())
        left = [worker for worker in self._finished if not worker.killed]
        return Outcome(
            run_dir=self._run_dir,
            exit_codes=[worker.process.returncode for worker in left],
            counters=[json.loads(worker.said.splitlines()[-1]) for worker in left],
            aggregator_code=code,
            run_json=run_json,
            live=self._folder / "live",
            watched=self._watched,
            log=(self._folder / "log").read_text(),
        )

    def clean_up(self):
        for worker in self._workers:
            worker.close()
        if self._aggregator is not None and self._aggregator.poll() is None:
            self._aggregator.kill()
            self._aggregator.wait()
        if self._proxy is not None and self._proxy.is_alive():
            self._proxy.stop()
        self._forget_ready()
        for fd in self._lifeline:
            with contextlib.suppress(OSError):
                os.close(fd)
        self._log.close()
        for mount in self._mounts:
            subprocess.run(["umount", str(mount)], check=True)

    def _serve_once(self):
        now = time.monotonic()
        due = [timer for timer in self._timers if now >= timer[0]]
        self._timers = [timer for timer in self._timers if timer not in due]
        for _, do in due:
            do()
        outputs = {worker.process.stdout: worker for worker in self._workers}
        ready, _, _ = select.select(list(outputs), [], [], 0.02)
        for output in ready:
            self._hear(outputs[output])
        if self._aggregator.poll() is not None:
            self._restart_aggregator()
        merged = run_file.read(self._run_dir / "run.json").get("last_step", -1) if self._held else -1
        for step, worker in self._held:
            if step <= merged:
                worker.go_on()
        self._held = [(step, worker) for step, worker in self._held if step > merged]

    def _hear(self, worker):
        line = worker.process.stdout.readline()
        if line.strip().isdecimal():
            worker.step = int(line)
            self._reached(worker)
        elif line:
            worker.said += line
        else:
            worker.close()
            self._workers.remove(worker)
            self._finished.append(worker)

    def _reached(self, worker):
        rank, step = worker.settings["rank"], worker.step
        due = [f for f in self._pending if f.rank == rank and f.step <= step]
        self._pending = [f for f in self._pending if f not in due]
        for fault in due:
            self._do(fault, worker)
        if any(isinstance(fault, Await) for fault in due):
            self._held.append((step, worker))
        else:
            worker.go_on()

    def _do(self, fault, worker):
        if isinstance(fault, KillAggregator):
            self._aggregator.kill()
            self._aggregator.wait()
        elif isinstance(fault, Kill):
            worker.kill()
        elif isinstance(fault, Freeze):
            worker.process.send_signal(signal.SIGSTOP)
            self._after(fault.seconds, lambda: worker.process.send_signal(signal.SIGCONT))
        elif isinstance(fault, FillDisk):
            filler = self._disk(fault) / "filler"
            _fill(filler)
            if fault.seconds is not None:
                self._after(fault.seconds, filler.unlink)
        elif isinstance(fault, Restart):
            worker.kill()
            self._begin_life([fault.rank], fault.checkpoint, worker.settings["world_size"])
        elif isinstance(fault, RestartAll):
            for other in self._workers:
                other.kill()
            self._begin_life(range(fault.world_size), fault.checkpoint, fault.world_size)

    def _begin_life(self, ranks, checkpoint, world_size):
        self._lives += 1
        for rank in ranks:
            start = lambda rank=rank: self._start_worker(rank, checkpoint, world_size)  # noqa: E731
            self._after(_RESTART_SECONDS, start)

    def _after(self, seconds, do):
        self._timers.append((time.monotonic() + seconds, do))

    def _start_worker(self, rank, checkpoint, world_size):
        own = [f for f in self._plan.of(Rank) if f.rank == rank]
        every = max([f.every for f in own], default=1)
        repeated = [f.repeated for f in own if f.repeated is not None and every == 1]
        pauses = sorted({f.step for f in self._pending if f.rank == rank and f.step > checkpoint})
        settings = {
            "rank": rank,
            "world_size": world_size,
            "life": self._lives,
            "run_dir": str(self._run_dir),
            "endpoint": self._proxy.endpoints[rank] if self._proxy is not None else self._endpoint,
            "initial_step": checkpoint,
            "last_step": self._last_step,
            "step_seconds": _STEP_SECONDS + sum(f.step_seconds for f in own),
            "every": every,
            "clock_seconds": sum(f.clock_seconds for f in own),
            "repeated": repeated[0] if repeated else None,
            "buffer_bytes": min([f.buffer_bytes for f in own], default=64 << 20),
            "pauses": pauses,
        }
        self._workers.append(_Worker(settings, self._log))

    def _start_aggregator(self, *, wait=False):
        self._forget_ready()
        self._ready_read, ready_write = os.pipe()
        settings = {
            "run_dir": str(self._run_dir),
            "bind": (self._endpoint,),
            "max_wait_seconds": self._plan.max_wait_seconds,
            "max_lag_steps": self._plan.max_lag_steps,
            "ready_fd": ready_write,
            "lifeline_fd": self._lifeline[0],
        }
        self._aggregator = subprocess.Popen(
            [sys.executable, str(_HERE / "aggregate.py"), json.dumps(settings)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=(ready_write, self._lifeline[0]),
        )
        os.close(ready_write)
        if wait:
            ready, _, _ = select.select([self._ready_read], [], [], 30)
            assert ready, "the aggregator did not start"
            assert os.read(self._ready_read, 100), "the aggregator did not start"

    def _forget_ready(self):
        if self._ready_read is not None:
            os.close(self._ready_read)
            self._ready_read = None

    def _restart_aggregator(self):
        """Have a dead aggregator started again, as the launcher does."""
        if not any(do == self._start_aggregator for _, do in self._timers):
            self._after(_RESTART_AGGREGATOR_SECONDS, self._start_aggregator)

    def _finish(self):
        """Wait for the aggregator to end; one that dies over it is started once more."""
        if self._plan.of(FreezeAggregator):
            self._aggregator.send_signal(signal.SIGCONT)
        if self._aggregator.poll() is not None:
            self._start_aggregator()
        self._keep_live()
        os.close(self._lifeline[1])
        for fault in self._plan.of(KillAggregator):
            if fault.step is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._aggregator.wait(fault.seconds)
                if self._aggregator.poll() is None:
                    self._aggregator.kill()
                    self._aggregator.wait()
                    self._start_aggregator()
        code = self._aggregator.wait(_RUN_SECONDS)
        self._look()
        return code

    def _keep_live(self):
        """Copy what the aggregator has merged by itself, once it has merged everything or does not go on."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while time.monotonic() < deadline:
            entries = run_file.read(self._run_dir / "run.json")
            if entries.get("last_step") == self._last_step and not entries["ranks"]["live"]:
                break
            time.sleep(0.05)
        shutil.rmtree(self._folder / "live", ignore_errors=True)
        shutil.copytree(self._run_dir / "merged", self._folder / "live" / "merged")

    def _look(self):
        for name, reader in self._watched.items():
            if (self._run_dir / "merged" / name).is_dir():
                reader.Reload()

    def _make_disks(self):
        """Give each full-to-be disk a file system of its own; the other folders stay where they are."""
        for fault in self._plan.of(FillDisk):
            disk = self._disk(fault)
            if fault.side == "aggregator":
                for rank in range(WORLD_SIZE):
                    (self._folder / f"rank_{rank}").mkdir()
            else:
                disk.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", disk], check=True)
            self._mounts.append(disk)
            ranks = range(WORLD_SIZE) if fault.side == "aggregator" else [fault.rank]
            for rank in ranks:
                folder = self._folder / f"rank_{rank}" if fault.side == "aggregator" else disk
                (self._run_dir / f"rank_{rank}").symlink_to(folder)

    def _disk(self, fault):
        return self._run_dir if fault.side == "aggregator" else self._folder / f"disk_{fault.rank}"


def mounting_works(folder):
    """Return whether this user may mount a file system of its own."""
    place = folder / "mount"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], capture_output=True, check=False)
    if done.returncode == 0:
        subprocess.run(["umount", place], check=True)
    return done.returncode == 0


def _fill(path):
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
