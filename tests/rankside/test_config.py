"""The rank's settings: read from the environment once, refused with the field's name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rankside.config import RankConfig
from rankside.errors import ConfigError
from rankside.schedule import Schedule

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
    assert (config.rank, config.every, config.logdir, config.run_dir) == (
        1,
        10,
        Path("here").absolute(),
        None,
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rank", -1), ("rank", 4), ("rank", "1"), ("rank", 1.0), ("rank", True), ("world_size", "4"),
        ("flush_seconds", 0), ("flush_seconds", float("nan")), ("flush_seconds", "2"), ("heartbeat_seconds", -1.0),
        ("buffer_bytes", 0), ("queue_limit", False), ("file_bytes", None), ("every", 0), ("every", {5: 1}),
        ("active", 1), ("insecure", "no"), ("world_size", 0), ("world_size", 1 << 40), ("rank", np.int64(4)),
        ("logdir", 5), ("logdir", ""), ("logdir", "a\0b"), ("run_dir", 5), ("run_dir", ""), ("key", b"key"),
        ("endpoint", 5), ("endpoint", ""), ("scheduler", None), ("coordinates", None),
        ("flush_seconds", float("inf")), ("heartbeat_seconds", True), ("heartbeat_seconds", 10**400),
        ("buffer_bytes", 1.5), ("queue_limit", 2.0), ("file_bytes", "1"), ("file_bytes", 1 << 70),
        ("every", 1 << 70), ("every", True), ("every", 1.0), ("every", None), ("every", {}), ("every", {0: 1 << 70}),
        ("every", {-1: 1, 0: 1}), ("every", {0: 0}), ("every", {0: 1, "a": 2}), ("every", [1]),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_used_is_refused_by_name(field, value):
    with pytest.raises(ConfigError, match=f"{field}="):
        RankConfig(**{"rank": 0, "world_size": 4, field: value})


@pytest.mark.parametrize("coordinates", [{"dp": -1}, {"dp": "0"}, {"dp": True}, {5: 0}, {"": 0}, [("dp", 0)]])
def test_a_place_that_is_none_is_refused(coordinates):
    with pytest.raises(ConfigError, match="coordinates"):
        RankConfig(coordinates=coordinates)


def test_numbers_of_numpy_are_taken_as_pythons():
    config = RankConfig(
        rank=np.int64(1), world_size=np.uint8(2), every={np.int32(0): np.int64(5)}, buffer_bytes=np.int64(9),
        flush_seconds=np.float32(0.5), coordinates={"dp": np.int64(1)}, logdir="runs",
    )  # fmt: skip
    numbers = (config.rank, config.world_size, config.buffer_bytes, config.flush_seconds)
    assert numbers == (1, 2, 9, 0.5)
    assert [type(number) for number in numbers] == [int, int, int, float]
    assert config.coordinates == {"dp": 1}
    assert config.logdir == Path("runs").absolute()
    schedule = Schedule(config.every)
    assert [step for step in range(1, 12) if schedule.ends_window(step, step - 1)] == [5, 10]


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK_ID": "5", "RANK_SIZE": "2"}, {"RANK_ID": "2", "MS_WORKER_NUM": "2"}, {"RANK_ID": "-1"},
        {"RANK_SIZE": "0"}, {"RANK_ID": "0", "RANK_SIZE": "two"},
    ],
)  # fmt: skip
def test_a_rank_that_its_world_has_no_place_for_is_refused(environment):
    with pytest.raises(ConfigError, match=r"rank|RANK_SIZE|world_size"):
        RankConfig.from_environment(environment)


def test_a_rank_without_a_world_size_is_the_last_one():
    config = RankConfig.from_environment({"RANK_ID": "5"})
    assert (config.rank, config.world_size) == (5, 6)


def test_an_unknown_setting_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"evry.*every"):
        RankConfig.from_environment({}, evry=3)


def test_a_variable_that_is_no_number_is_refused_by_name():
    with pytest.raises(ConfigError, match="RANK_ID"):
        RankConfig.from_environment({"RANK_ID": "two"})
