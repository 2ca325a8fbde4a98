"""What a `RankMonitor` records, beyond where it records to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rankside.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorOptions:
    """The options of `RankMonitor`, which describes them; raises `ConfigError` where one cannot be used."""

    log_every: int = 100
    initial_step: int | None = None
    gradient_norms: bool = True
    eager_norms_every: int = 10
    layer_norms_every: int = 0
    fingerprint_every: int = 100
    weights_every: int = 0
    histograms: str | None = None
    hparams: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    graph: bool = True

    def __post_init__(self) -> None:
        """Check every field."""
        for name in (
            "log_every",
            "eager_norms_every",
            "layer_norms_every",
            "fingerprint_every",
            "weights_every",
        ):
            _require_steps(name, getattr(self, name))
        if self.eager_norms_every == 0:
            raise ConfigError("eager_norms_every=0: 1 or more is expected; gradient_norms=False records none")
        if self.initial_step is not None:
            _require_steps("initial_step", self.initial_step)
        for name in ("gradient_norms", "graph"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise ConfigError(f"{name}={value!r}: True or False is expected")
        if self.histograms is not None and not isinstance(self.histograms, str):
            raise ConfigError(
                f"histograms={self.histograms!r}: a name pattern such as '*.weight' is expected"
            )
        if self.histograms is not None and not self.weights_every:
            raise ConfigError("histograms: say how often with weights_every, a number of steps above 0")
        if self.layer_norms_every and not self.gradient_norms:
            raise ConfigError("layer_norms_every: needs gradient_norms=True, which puts the probe in place")
        for name, value in dict(self.hparams).items():
            _require_hyper_parameter(name, value)


def _require_steps(name: str, value: object) -> None:
    if type(value) is not int or value < 0:
        raise ConfigError(f"{name}={value!r}: a number of steps, 0 or more, is expected")


def _require_hyper_parameter(name: object, value: object) -> None:
    if not isinstance(name, str) or not isinstance(value, (bool, int, float, str)):
        raise ConfigError(
            f"hparams: {name!r}: {value!r}: a name with a number, a string or a bool is expected"
        )
