"""What a rank has to know about itself and its run; the only reader of the environment on the rank side."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

from rankside.errors import ConfigError
from rankside.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Mapping

ENDPOINT_VARIABLE = "CROSSRANK_ENDPOINT"
INSECURE_VARIABLE = "CROSSRANK_INSECURE"
KEY_VARIABLE = "CROSSRANK_KEY"
RUN_DIR_VARIABLE = "CROSSRANK_RUN_DIR"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankConfig:
    """One rank's settings.

    active: False in msrun's scheduler process, which runs the same script and must not pose as rank 0.
    rank, world_size: of this process.
    logdir: where run folders are made; used where no launcher has made one.
    run_dir: this run's folder, or None to let rank 0 start the aggregator and make it (the embedded default).
    endpoint: where the aggregator listens; None like `run_dir`. A run_dir without an endpoint records to files only.
    key: key file for TCP beyond this machine, or None. insecure: plain TCP was asked for by name.
    scheduler: "<host>:<port>" of msrun's scheduler: what the ranks of one job have in common. "" without msrun.
    coordinates: place in the parallel layout, such as {"dp": 0, "pp": 1}; empty for plain data parallel.
    every: length of a reporting window in steps, or a map from first step to length.
    flush_seconds: longest time for which a value is not in the file. heartbeat_seconds: between signs of life.
    buffer_bytes: unacknowledged blocks kept for the aggregator. queue_limit: logged steps not yet processed.
    file_bytes: size at which the event file is continued in a new one.
    """

    active: bool = True
    rank: int = 0
    world_size: int = 1
    logdir: Path = Path("runs")
    run_dir: Path | None = None
    endpoint: str | None = None
    key: Path | None = None
    insecure: bool = False
    scheduler: str = ""
    coordinates: Mapping[str, int] = field(default_factory=dict)
    every: int | Mapping[int, int] = 1
    flush_seconds: float = 2.0
    heartbeat_seconds: float = 1.0
    buffer_bytes: int = 64 << 20
    queue_limit: int = 100_000
    file_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        """Raise `ConfigError`, naming the field, where a value cannot be used."""
        for name in ("rank", "world_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise ConfigError(f"{name}={value!r}: a whole number is expected")
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"rank={self.rank!r}: a number from 0 to world_size - 1 = {self.world_size - 1} is expected"
            )
        for name in ("flush_seconds", "heartbeat_seconds", "buffer_bytes", "queue_limit", "file_bytes"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
                raise ConfigError(f"{name}={value!r}: a positive number is expected")
        Schedule(self.every)  # refuses what it cannot use

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None, **explicit: object) -> RankConfig:
        """Return the settings that msrun and the crossrank launcher left in the environment.

        environment: os.environ unless given. explicit: fields that win over it; None means not given.
        Raises `ConfigError` for an unknown field or a value that cannot be used.
        """
        environ = os.environ if environment is None else environment
        known = {f.name for f in fields(cls)}
        if unknown := explicit.keys() - known:
            raise ConfigError(f"{min(unknown)}: not a setting; known are {', '.join(sorted(known))}")
        rank = _integer(environ, "RANK_ID", _integer(environ, "MS_NODE_ID", 0))
        values: dict[str, object] = {
            "active": environ.get("MS_ROLE") != "MS_SCHED",
            "rank": rank,
            "world_size": max(
                _integer(environ, "RANK_SIZE", _integer(environ, "MS_WORKER_NUM", 1)), rank + 1
            ),
            "run_dir": Path(environ[RUN_DIR_VARIABLE]) if environ.get(RUN_DIR_VARIABLE) else None,
            "endpoint": environ.get(ENDPOINT_VARIABLE) or None,
            "insecure": environ.get(INSECURE_VARIABLE) == "1",
            "key": Path(environ[KEY_VARIABLE]) if environ.get(KEY_VARIABLE) else None,
        }
        if environ.get("MS_SCHED_HOST") and environ.get("MS_SCHED_PORT"):
            values["scheduler"] = f"{environ['MS_SCHED_HOST']}:{environ['MS_SCHED_PORT']}"
        values.update((name, value) for name, value in explicit.items() if value is not None)
        for name in ("logdir", "run_dir", "key"):
            if isinstance(values.get(name), str):
                values[name] = Path(str(values[name]))
        return cls(**values)  # type: ignore[arg-type]


def _integer(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError as error:
        raise ConfigError(f"environment variable {name}={text!r}: a number is expected") from error
