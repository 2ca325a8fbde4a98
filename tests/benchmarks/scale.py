"""How many ranks one aggregator serves: directly, and behind relays.

    python tests/benchmarks/scale.py [RANKS ...]

Prints, for each number of ranks, what came per second, the share of CPU time by stage and the peak of memory,
and asserts that the figures behind relays are bit for bit those of the same ranks directly.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from synthetic import TAGS, Way, events, run

_RANKS = (1, 100, 1000, 10_000)
_RANKS_PER_RELAY = 100


def main():
    counts = [int(argument) for argument in sys.argv[1:]] or _RANKS
    print(f"{os.cpu_count()} CPUs, {len(TAGS)} tags")
    with tempfile.TemporaryDirectory(prefix="xr-") as folder, tempfile.TemporaryDirectory() as sockets:
        for ranks in counts:
            steps = max(20, min(2000, 100_000 // ranks))
            outcomes = [run(Way(ranks, 0, steps), Path(folder), sockets)]
            if ranks > _RANKS_PER_RELAY:
                outcomes.append(run(Way(ranks, ranks // _RANKS_PER_RELAY, steps), Path(folder), sockets))
                assert events(outcomes[0].run_dir) == events(outcomes[1].run_dir)
            for outcome in outcomes:
                show(outcome)
        print("figures behind relays are bit for bit those of the same ranks directly")


def show(outcome):
    way, seconds = outcome.way, outcome.seconds
    place = f"behind {way.relays} relays" if way.relays else "directly"
    print(
        f"{way.ranks} ranks {place}: {way.steps} steps in {seconds:.2f} s, {way.steps / seconds:.1f} steps/s, "
        f"{way.ranks * way.steps / seconds:,.0f} rank-steps/s, {outcome.messages / seconds:,.0f} messages/s, "
        f"{outcome.peak_bytes / 2**20:.0f} MiB"
    )
    total = sum(outcome.stages.values())
    print(
        "    CPU ms a step:",
        ", ".join(
            f"{stage} {1000 * cpu / way.steps:.2f} ({100 * cpu / total:.0f} %)"
            for stage, cpu in sorted(outcome.stages.items(), key=lambda item: -item[1])
        ),
    )


if __name__ == "__main__":
    main()
