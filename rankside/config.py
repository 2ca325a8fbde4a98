"""What a rank has to know about itself and its run; the only reader of the environment on the rank side."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from rankside.arguments import flag, path, seconds, whole
from rankside.errors import ConfigError
from rankside.messages import RANK_LIMIT
from rankside.schedule import Schedule

ENDPOINT_VARIABLE = "CROSSRANK_ENDPOINT"
INSECURE_VARIABLE = "CROSSRANK_INSECURE"
KEY_VARIABLE = "CROSSRANK_KEY"
RUN_DIR_VARIABLE = "CROSSRANK_RUN_DIR"

_SIZE_LIMIT = 1 << 53


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
        checked: dict[str, object] = {
            "world_size": whole("world_size", self.world_size, least=1, most=RANK_LIMIT),
        }
        checked["rank"] = whole("rank", self.rank, least=0, most=int(self.world_size) - 1)
        for name in ("active", "insecure"):
            checked[name] = flag(name, getattr(self, name))
        checked["logdir"] = path("logdir", self.logdir)
        for name in ("run_dir", "key"):
            value = getattr(self, name)
            checked[name] = None if value is None else path(name, value)
        for name in ("flush_seconds", "heartbeat_seconds"):
            checked[name] = seconds(name, getattr(self, name))
        for name in ("buffer_bytes", "queue_limit", "file_bytes"):
            checked[name] = whole(name, getattr(self, name), least=1, most=_SIZE_LIMIT)
        if self.endpoint is not None and not (isinstance(self.endpoint, str) and self.endpoint):
            raise ConfigError(f"endpoint={self.endpoint!r}: ipc://<path> or tcp://<host>:<port> is expected")
        if not isinstance(self.scheduler, str):
            raise ConfigError(f"scheduler={self.scheduler!r}: a text such as '127.0.0.1:8118' is expected")
        checked["coordinates"] = _coordinates(self.coordinates)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
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
        world_size = _integer(environ, "RANK_SIZE", _integer(environ, "MS_WORKER_NUM", rank + 1))
        values: dict[str, object] = {
            "active": environ.get("MS_ROLE") != "MS_SCHED",
            "rank": rank,
            "world_size": world_size,
            "run_dir": Path(environ[RUN_DIR_VARIABLE]) if environ.get(RUN_DIR_VARIABLE) else None,
            "endpoint": environ.get(ENDPOINT_VARIABLE) or None,
            "insecure": environ.get(INSECURE_VARIABLE) == "1",
            "key": Path(environ[KEY_VARIABLE]) if environ.get(KEY_VARIABLE) else None,
        }
        if environ.get("MS_SCHED_HOST") and environ.get("MS_SCHED_PORT"):
            values["scheduler"] = f"{environ['MS_SCHED_HOST']}:{environ['MS_SCHED_PORT']}"
        values.update((name, value) for name, value in explicit.items() if value is not None)
        return cls(**values)  # type: ignore[arg-type]


def _coordinates(given: object) -> dict[str, int]:
    if not isinstance(given, Mapping) or not all(isinstance(axis, str) and axis for axis in given):
        raise ConfigError(f"coordinates={given!r}: a map such as {{'dp': 0, 'pp': 1}} is expected")
    return {axis: whole(f"coordinates[{axis!r}]", at, least=0, most=RANK_LIMIT) for axis, at in given.items()}


def _integer(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError as error:
        raise ConfigError(f"environment variable {name}={text!r}: a number is expected") from error
