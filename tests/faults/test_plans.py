"""After every fault plan the merged curves are right, and training never noticed."""

from __future__ import annotations

import os

import fleet
import oracle
import pytest
from plan import FillDisk, generate

SEED = int(os.environ.get("CROSSRANK_FAULT_SEED", "20260731"))
PLANS = generate(SEED, int(os.environ.get("CROSSRANK_FAULT_PLANS", "56")))


@pytest.mark.real
@pytest.mark.parametrize("number", range(len(PLANS)))
def test_merged_curves_equal_a_plain_computation_from_the_rank_files(number, tmp_path, socket_folder):
    plan = PLANS[number]
    if plan.of(FillDisk) and not fleet.mounting_works(tmp_path):
        pytest.skip("filling a disk needs the right to mount one")
    print(f"seed {SEED}, plan {number}: {plan}")
    with fleet.run(plan, tmp_path, sockets=socket_folder) as outcome:
        print(outcome.run_json)
        print(outcome.log)
        assert set(outcome.exit_codes) <= {0}
        assert outcome.aggregator_code == 0
        right = oracle.expected(outcome.run_dir)
        oracle.compare(outcome.run_dir, right)
        oracle.compare(outcome.run_dir, right, outcome.watched)
