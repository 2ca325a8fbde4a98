import numpy as np
from worlds import matrix_of

from aggregator.detect.noise_scale import TAG, GradientNoiseScale
from rankside.tags import Tag, well_known

TAGS = [well_known("local-grad-norm"), well_known("grad-norm"), Tag("batch-size")]


def test_it_converges_to_the_trace_of_the_covariance_over_the_squared_gradient():
    rng = np.random.default_rng(1)
    gradient = rng.normal(size=50)
    deviation = 3.0
    expected = 50 * deviation**2 / np.sum(gradient**2)
    curve = GradientNoiseScale(memory_steps=400)
    for step in range(1, 3001):
        own = gradient + deviation * rng.normal(size=(8, 50))
        reduced = np.linalg.norm(own.mean(axis=0))
        values = np.column_stack([np.linalg.norm(own, axis=1), np.full(8, reduced)])
        point = curve.observe(matrix_of(step, TAGS, values))
    ((tag, value),) = point
    assert tag == TAG
    assert abs(value / expected - 1) < 0.15


def test_a_global_norm_that_no_mean_gradient_has_gives_no_value():
    assert GradientNoiseScale().observe(matrix_of(1, TAGS, np.array([[1.0, 1.9], [1.0, 1.9]]))) == ()


def test_unequal_batches_a_single_rank_and_missing_norms_give_no_value():
    curve = GradientNoiseScale()
    assert curve.observe(matrix_of(1, TAGS, np.array([[1.0, 0.9, 8], [1.0, 0.9, 4]]))) == ()
    assert curve.observe(matrix_of(2, TAGS, np.array([[1.0, 0.9]]))) == ()
    assert curve.observe(matrix_of(3, TAGS, np.array([[1.0], [1.0]]))) == ()
    assert len(curve.observe(matrix_of(4, TAGS, np.array([[1.0, 0.9, 8], [1.0, 0.9, 8]])))) == 1
