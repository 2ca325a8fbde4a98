"""The rank's settings: read from the environment once, refused with the field's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankside.config import RankConfig
from rankside.errors import ConfigError

MSRUN = {
    "RANK_ID": "2", "RANK_SIZE": "4", "MS_ROLE": "MS_WORKER", "MS_WORKER_NUM": "4",
    "MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": "8118",
}  # fmt: skip


def test_what_msrun_says_is_taken_over():
    config = RankConfig.from_environment(MSRUN)
    assert (config.rank, config.world_size, config.active) == (2, 4, True)
    assert config.scheduler == "127.0.0.1:8118"
    assert (config.run_dir, config.endpoint) == (None, None)


def test_what_the_launcher_says_is_taken_over():
    config = RankConfig.from_environment(
        {**MSRUN, "CROSSRANK_RUN_DIR": "/runs/a", "CROSSRANK_ENDPOINT": "ipc:///x/y"}
    )
    assert (config.run_dir, config.endpoint) == (Path("/runs/a"), "ipc:///x/y")


def test_the_scheduler_process_is_not_active_although_it_has_rank_0():
    assert not RankConfig.from_environment({**MSRUN, "MS_ROLE": "MS_SCHED", "RANK_ID": "0"}).active


def test_without_msrun_there_is_one_rank():
    config = RankConfig.from_environment({})
    assert (config.rank, config.world_size, config.scheduler) == (0, 1, "")


def test_explicit_arguments_win_and_none_means_not_given():
    config = RankConfig.from_environment(MSRUN, rank=1, every=10, logdir="here", run_dir=None)
    assert (config.rank, config.every, config.logdir, config.run_dir) == (1, 10, Path("here"), None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rank", -1), ("rank", 4), ("rank", "1"), ("rank", 1.0), ("rank", True), ("world_size", "4"),
        ("flush_seconds", 0), ("flush_seconds", float("nan")), ("flush_seconds", "2"), ("heartbeat_seconds", -1.0),
        ("buffer_bytes", 0), ("queue_limit", False), ("file_bytes", None), ("every", 0), ("every", {5: 1}),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_used_is_refused_by_name(field, value):
    with pytest.raises(ConfigError, match=f"{field}="):
        RankConfig(**{"rank": 0, "world_size": 4, field: value})


def test_an_unknown_setting_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"evry.*every"):
        RankConfig.from_environment({}, evry=3)


def test_a_variable_that_is_no_number_is_refused_by_name():
    with pytest.raises(ConfigError, match="RANK_ID"):
        RankConfig.from_environment({"RANK_ID": "two"})
