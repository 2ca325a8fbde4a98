"""Whether the memory of a rank grows while it records: a million steps, with and without an aggregator.

    python tests/benchmarks/memory.py [--steps 1000000] [--tags 12] [--kinds files,aggregator,dead]

Records through `Recorder` to files only, to a real aggregator, and to an endpoint where nobody listens, each in a
process of its own, and prints the resident memory of that process after 10 %, 20 %, ... of the steps. The loop
waits whenever the background thread is more than 1,000 steps behind, so that what is measured is not the queue.
To the dead endpoint, blocks are kept for sending until they fill `buffer_bytes`, here 8 MiB; what grows until then
is that buffer. The same bound holds where the aggregator is slower than the loop.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rankside import RankConfig, Recorder

BUFFER_BYTES = 8 << 20
BEHIND_STEPS = 1_000


def resident_mib() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def record(kind: str, folder: Path, *, steps: int, tags: int, buffer_bytes: int) -> list[float]:
    """Record so many steps; return the resident memory in MiB after each tenth of them."""
    settings = {"logdir": folder, "buffer_bytes": buffer_bytes}
    if kind == "files":
        settings["run_dir"] = folder / "run"
    elif kind == "dead":
        settings |= {"run_dir": folder / "run", "endpoint": f"ipc://{folder}/nobody"}
    recorder = Recorder(RankConfig(**settings))
    recorder.start()
    names = [f"metric/{index}" for index in range(tags)]
    sizes = []
    for step in range(1, steps + 1):
        recorder.log(step, {name: step * 0.5 + index for index, name in enumerate(names)})
        if step % BEHIND_STEPS == 0:
            while len(recorder._queue) > BEHIND_STEPS:
                time.sleep(0.001)
        if step % (steps // 10) == 0:
            while recorder._queue:
                time.sleep(0.001)
            gc.collect()
            sizes.append(resident_mib())
    recorder.finish(timeout_seconds=60.0 if kind != "dead" else 1.0)
    return sizes


def measure(kind: str, *, steps: int, tags: int, buffer_bytes: int = BUFFER_BYTES) -> list[float]:
    """Do the same in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="xr-") as folder:
        settings = {
            "kind": kind,
            "folder": folder,
            "steps": steps,
            "tags": tags,
            "buffer_bytes": buffer_bytes,
        }
        command = [sys.executable, __file__, "--record", json.dumps(settings)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--tags", type=int, default=12)
    parser.add_argument("--kinds", default="files,aggregator,dead")
    parser.add_argument("--record", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.record:
        settings = arguments.record
        print(json.dumps(record(settings.pop("kind"), Path(settings.pop("folder")), **settings)))
        return 0
    for kind in arguments.kinds.split(","):
        began = time.monotonic()
        sizes = measure(kind, steps=arguments.steps, tags=arguments.tags)
        told = ", ".join(f"{10 * (i + 1)} %: {size:.1f}" for i, size in enumerate(sizes))
        print(f"{kind}: resident MiB after {told}; {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
