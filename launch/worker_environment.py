"""What the training command's processes are told through their environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from rankside.config import ENDPOINT_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launch.plan import RunPlan

_ATTACH_FOLDER = Path(__file__).parent / "attach"


def worker_environment(environment: Mapping[str, str], plan: RunPlan, endpoint: str) -> dict[str, str]:
    """Return the environment with where to report, and what records a script without a change to it.

    The attaching folder goes to the front of PYTHONPATH; the packages themselves are found as installed ones.
    """
    told = {**environment, ENDPOINT_VARIABLE: endpoint}
    if plan.attach:
        path = told.get("PYTHONPATH")
        told["PYTHONPATH"] = os.pathsep.join([str(_ATTACH_FOLDER), *([path] if path else [])])
    return told
