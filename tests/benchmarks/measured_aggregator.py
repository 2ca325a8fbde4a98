"""An aggregator as `crossrank serve` runs it, that also says how much CPU time each stage took."""

from __future__ import annotations

import functools
import json
import resource
import sys
import time
from collections import Counter
from pathlib import Path

from aggregator import pipeline, run
from aggregator.align import Aligner
from aggregator.live.members import Members
from aggregator.live.server import Server
from aggregator.live.service import Service
from aggregator.live.watch import Watch
from aggregator.sinks.group import SinkGroup
from rankside import wire
from rankside.transport import Hub


class Stages:
    """CPU seconds of this thread by stage, each without the stages that it calls."""

    def __init__(self):
        self.seconds = Counter()
        self.calls = Counter()
        self.last_step_at = 0.0
        self._inner = [0.0]

    def measure(self, owner, name, stage):
        """Count the function under the stage from now on."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def measured(*arguments, **options):
            self._inner.append(0.0)
            began = time.thread_time()
            try:
                return function(*arguments, **options)
            finally:
                took = time.thread_time() - began
                self.seconds[stage] += took - self._inner.pop()
                self._inner[-1] += took
                self.calls[stage] += 1
                if stage == "write":
                    self.last_step_at = time.monotonic()

        setattr(owner, name, measured)


def main():
    settings = json.loads(sys.argv[1])
    report = Path(settings.pop("report"))
    settings["run_dir"] = Path(settings["run_dir"])
    settings["bind"] = (settings["bind"],)
    stages = Stages()
    stages.measure(Hub, "receive", "receive")
    stages.measure(wire, "decode", "decode")
    stages.measure(Service, "take", "admit")
    stages.measure(Service, "_answer", "answer")
    stages.measure(Service, "store", "acknowledge")
    stages.measure(Service, "acknowledge", "acknowledge")
    stages.measure(Service, "stored_ranks", "acknowledge")
    stages.measure(Aligner, "add", "align")
    stages.measure(Aligner, "close", "align")
    stages.measure(pipeline, "merge", "merge")
    stages.measure(SinkGroup, "write", "write")
    stages.measure(SinkGroup, "flush", "flush")
    stages.measure(Server, "_store", "acknowledge")
    stages.measure(Members, "lose_silent", "watch")
    stages.measure(Watch, "look", "watch")
    make = run.default_detectors

    def detectors(*arguments, **options):
        detector = make(*arguments, **options)
        stages.measure(detector, "observe", "detect")
        return detector

    run.default_detectors = detectors
    code = run.serve(run.ServeOptions(**settings))
    figures = {
        "stages": dict(stages.seconds),
        "messages": stages.calls["decode"],
        "last_step_at": stages.last_step_at,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    report.write_text(json.dumps(figures))
    return code


if __name__ == "__main__":
    sys.exit(main())
