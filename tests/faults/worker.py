"""One rank of the fleet: a loop that logs numbers which rank, step and life determine.

Started with its settings as JSON. It says each step of `pauses` on standard output when it has logged it, and
goes on when it is answered; at the end it says what its recorder counted.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from rankside.config import RankConfig
from rankside.recorder import Recorder

EVALUATED_EVERY = 50


def values_of(rank, step, life):
    """Return the values of a step; a few are not finite."""
    loss, norm = np.random.default_rng((rank, step, life)).normal((2.0, 1.0), 0.1)
    if (step, rank) in {(17, 1), (101, 3)}:
        norm = np.nan if rank == 1 else np.inf
    return {"loss": float(loss), "local-grad-norm": float(norm), "learning-rate": 0.1 / step}


def main(settings):
    rank, life = settings["rank"], settings["life"]
    offset = settings["clock_seconds"]
    config = RankConfig(
        rank=rank,
        world_size=settings["world_size"],
        run_dir=Path(settings["run_dir"]),
        endpoint=settings["endpoint"],
        every=settings["every"],
        buffer_bytes=settings["buffer_bytes"],
        heartbeat_seconds=0.1,
        flush_seconds=1.0,
    )
    recorder = Recorder(config, wall_clock=lambda: time.time() + offset)
    recorder.start(initial_step=settings["initial_step"])
    for step in range(settings["initial_step"] + 1, settings["last_step"] + 1):
        time.sleep(settings["step_seconds"])
        recorder.log(step, values_of(rank, step, life))
        if step % EVALUATED_EVERY == 0:
            recorder.report(step, {"eval/accuracy": step / 1000 + rank})
        if step - 2 == settings["repeated"]:
            recorder.log(step - 2, values_of(rank, step - 2, life + 1000))
        if step in settings["pauses"]:
            print(step, flush=True)
            sys.stdin.readline()
    recorder.finish()
    print(json.dumps(recorder.counters), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
