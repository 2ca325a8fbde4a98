import numpy as np

from aggregator.detect import DetectionSettings
from aggregator.detect.nonfinite import NonfiniteDetector
from aggregator.live.guide import Guide
from aggregator.merge import merge
from aggregator.step import StepMatrix
from rankside.tags import well_known
from rankside.window import single

TAGS = [well_known("local-grad-norm"), well_known("loss")]


def guided(*steps, wanted=True):
    """What rank 0 is told after these steps of two ranks, each a gradient norm and a loss for every rank."""
    guide, detector = Guide(stop_on_nonfinite=wanted), NonfiniteDetector(DetectionSettings())
    for step, (norms, losses) in enumerate(steps, 1):
        matrix = StepMatrix(step, TAGS, np.arange(2), single(np.array([norms, losses], dtype=float).T))
        for finding in detector.observe(matrix, merge(matrix)):
            guide.announce(finding)
    return guide.advise(0, 1).stop


def test_training_is_asked_to_stop_also_where_the_loss_follows_a_gradient_norm():
    nan = float("nan")
    assert guided(([1, 1], [1, nan])).startswith("rank 1: loss is NaN")
    assert not guided(([1, nan], [1, 1]))
    assert "loss" in guided(([1, nan], [1, 1]), ([nan, nan], [nan, nan]))
    assert not guided(([1, 1], [1, nan]), wanted=False)
