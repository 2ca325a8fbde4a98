"""How reliably, how early and how quietly the detectors name the bad rank.

    python -m tests.benchmarks.detection [--quick] [--seed 1]

Every world is generated from the seed, merged, and handed to the detectors step by step, as the pipeline does;
MindSpore is not needed. A world of 1024 ranks holds as many peer groups of the wanted size as fit, each with one
bad rank. Ranks have in common a falling curve and noise of half a standard deviation; on top each has its own:

    gaussian    independent, normal
    heavy       independent, Student's t with three degrees of freedom
    ar          AR(1) with coefficient 0.8
    unequal     normal, with a constant offset (normal, 3 sigma) and a size (0.8 to 1.25) of each rank's own

all with standard deviation 1 (`unequal`: the rank's own). Drifts are steps of 1 or 3 of the rank's own standard
deviations, up or down at random, after so many healthy steps as the table says. The healthy steps are also what
false findings are counted in. A delay of 0 is a finding at the first bad step itself.

`oracle` is what could be found of a shift in autocorrelated noise, at 1e-7 false findings per rank-step over both
signs, by who knows the noise and the baseline and has nothing to learn: the better of a moving sum as long as the
deadline (Guépié, Fillatre and Nikiforov, 2012) and of the likelihood ratio at the deadline. Peers add noise of
their own (1 / (n - 1) of the variance), which no test can take away as long as what the ranks have in common may
move freely.

Slow ranks need 10 % more time of their own. Times vary by 10 %, or by 4 % (log-normal): the host time of a real
training under msrun, with 9 ms of own work a step on two ranks, varied by 3.8 % and 4.0 % (1.48 times the median
absolute deviation) on a machine that others used as well, with an autocorrelation of 0.1.

--quick takes some ten seconds; without it, twelve minutes on one core that does nothing else.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.benchmarks.detection.cases import benchmark
from tests.benchmarks.detection.table import HEADER, summary


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a part of the table, in some ten seconds")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    started = time.perf_counter()
    print(HEADER, flush=True)
    rows = []
    for row in benchmark(quick=options.quick, seed=options.seed):
        print(row, flush=True)
        rows.append(row)
    print(summary(rows))
    print(f"{time.perf_counter() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
