"""What a `RankMonitor` records, beyond where it records to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from rankside.arguments import flag, whole
from rankside.errors import ConfigError
from rankside.messages import STEP_LIMIT


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
            object.__setattr__(self, name, whole(name, getattr(self, name), least=0, most=STEP_LIMIT))
        if self.eager_norms_every == 0:
            raise ConfigError("eager_norms_every=0: 1 or more is expected; gradient_norms=False records none")
        if self.initial_step is not None:
            initial_step = whole("initial_step", self.initial_step, least=0, most=STEP_LIMIT)
            object.__setattr__(self, "initial_step", initial_step)
        for name in ("gradient_norms", "graph"):
            flag(name, getattr(self, name))
        if self.histograms is not None and not (isinstance(self.histograms, str) and self.histograms):
            raise ConfigError(
                f"histograms={self.histograms!r}: a name pattern such as '*.weight' is expected"
            )
        if self.histograms is not None and not self.weights_every:
            raise ConfigError("histograms: say how often with weights_every, a number of steps above 0")
        if self.layer_norms_every and not self.gradient_norms:
            raise ConfigError("layer_norms_every: needs gradient_norms=True, which puts the probe in place")
        object.__setattr__(self, "hparams", _hyper_parameters(self.hparams))


def _hyper_parameters(given: object) -> dict[str, bool | int | float | str]:
    """Return them with numpy's numbers as Python's."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"hparams={given!r}: a map from names to numbers, strings or bools is expected")
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}
    for name, value in plain.items():
        if not (isinstance(name, str) and name and isinstance(value, (bool, int, float, str))):
            raise ConfigError(
                f"hparams: {name!r}: {value!r}: a name with a number, a string or a bool is expected"
            )
    return plain
