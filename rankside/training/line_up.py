"""Which collectors a monitor has, and in which order they are called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankside.training.eager_probe import EagerProbe
from rankside.training.fingerprint import Fingerprint
from rankside.training.gradient_probe import GradientProbe
from rankside.training.graph import NetworkGraph
from rankside.training.hparams import HyperParameters
from rankside.training.learning_rate import LearningRate
from rankside.training.loss import Loss
from rankside.training.loss_scale import LossScale
from rankside.training.memory import Memory
from rankside.training.mindformers import MindformersNumbers
from rankside.training.progress import Progress
from rankside.training.returned_norms import ReturnedNorms
from rankside.training.weights import WeightHistograms, WeightNorms

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankside.training.collector import Collector
    from rankside.training.options import MonitorOptions
    from rankside.training.self_watch import SelfWatch
    from rankside.training.times import Times


def line_up(
    options: MonitorOptions, *, reports: Callable[[int], bool], times: Times, self_watch: SelfWatch
) -> list[Collector]:
    """Return the collectors that these options ask for.

    reports: tells whether a step ends a reporting window.

    The probes come first, since others ask them what they record; the progress line last, since it shows what the
    others found; and the costly ones after the times, which they would otherwise be part of.
    """
    eager_every, layers_every = options.eager_norms_every, options.layer_norms_every
    probe = GradientProbe(eager_every=eager_every, layers_every=layers_every)
    eager_probe = EagerProbe(every=eager_every, layers_every=layers_every)
    collectors: list[Collector | None] = [
        *((probe, eager_probe) if options.gradient_norms else ()),
        Loss(),
        LearningRate(reports, probe),
        LossScale(probe),
        ReturnedNorms(probe),
        times,
        Memory(),
        MindformersNumbers(),
        Fingerprint(options.fingerprint_every) if options.fingerprint_every else None,
        WeightNorms(options.weights_every) if options.weights_every else None,
        WeightHistograms(options.histograms, every=options.weights_every) if options.histograms else None,
        HyperParameters(options.hparams),
        NetworkGraph() if options.graph else None,
        self_watch,
        Progress(options.log_every) if options.log_every else None,
    ]
    return [collector for collector in collectors if collector is not None]
