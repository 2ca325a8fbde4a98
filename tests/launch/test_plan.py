"""A checked plan holds what the command line said, and no name that it accepts leaves the log folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.errors import UsageError
from launch.msrun import msrun_layout
from launch.plan import RunPlan, check_run_name


@given(st.text(max_size=140))
def test_an_accepted_run_name_is_one_visible_folder_inside_the_log_folder(name: str) -> None:
    try:
        check_run_name(name)
    except UsageError as error:
        assert "\n" not in str(error)  # noqa: PT017 - most names are accepted and raise nothing
        return
    path = Path("/logs") / name
    assert path.parent == Path("/logs")
    assert path.resolve().parent == Path("/logs")
    assert not name.startswith(".")


@pytest.mark.parametrize(
    ("command", "world_size"),
    [
        ("msrun --worker_num=4 train.py", 4),
        ("/opt/bin/msrun --worker_num 4 --local_worker_num 2 train.py", 4),
        ("msrun --local_worker_num 2 --join=True --worker_num 16 train.py", 16),
        ("msrun train.py --worker_num=3", 8),
        ("msrun --log_dir logs train.py", 8),
        ("msrun --worker_num=many train.py", None),
        ("bash run.sh --worker_num=4", None),
    ],
)
def test_world_size_is_read_from_the_options_of_msrun_only(command: str, world_size: int | None) -> None:
    layout = msrun_layout(command.split())
    assert (None if layout is None else layout.worker_num) == world_size


def _plan(**changed: object) -> RunPlan:
    options = {
        "command": ["true"],
        "logdir": Path("runs"),
        "run_name": None,
        "name_parts": [],
        "time_stamp": "20260102-030405",
        "bind": None,
        "max_wait_seconds": 30.0,
        "max_lag_steps": 1000,
    }
    return RunPlan.checked(**{**options, **changed})  # type: ignore[arg-type]


def test_the_default_name_is_the_time_and_the_chosen_hyper_parameters() -> None:
    assert _plan(name_parts=["lr=1e-3", "bs=32"]).run_name == "20260102-030405_lr=1e-3_bs=32"


def test_port_0_becomes_a_port_that_ranks_can_be_told() -> None:
    bind = _plan(bind="tcp://localhost:0").bind
    assert bind is not None
    assert bind.startswith("tcp://127.0.0.1:")
    assert int(bind.rpartition(":")[2]) > 0
