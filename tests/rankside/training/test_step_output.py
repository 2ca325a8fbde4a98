"""The loss is found in everything that train cells return."""

from __future__ import annotations

import mindspore
import numpy as np
import pytest
from mindspore import Tensor

from rankside.training.step_output import read_output
from rankside.training.tensor_value import fetch_mean

LOSS = Tensor(2.5, mindspore.float32)
FLAG, SCALE = Tensor(True), Tensor(512.0, mindspore.float32)  # noqa: FBT003 (MindSpore's own)
RATE, NORM = Tensor(0.1, mindspore.float32), Tensor([3.0], mindspore.float32)
VECTOR = Tensor([2.0, 3.0], mindspore.float32)


@pytest.mark.parametrize(
    "outputs",
    [
        LOSS,
        Tensor([2.5], mindspore.float32),
        VECTOR,
        2.5,
        (LOSS, FLAG, SCALE),
        (LOSS, False, SCALE),
        (LOSS, FLAG, SCALE, RATE, NORM),
        (LOSS, FLAG, SCALE, RATE, None),
        [LOSS],
        (LOSS, RATE),
        (LOSS, VECTOR, SCALE),
        (LOSS, {"weight": VECTOR}),
        {"loss": LOSS, "logits": VECTOR},
        {"total": LOSS},
        ((LOSS, RATE), FLAG),
        ({"logits": VECTOR * 9, "loss": LOSS}, VECTOR),
        ([{"loss": (LOSS, VECTOR * 9)}],),
        {"logits": VECTOR * 9, "loss": [LOSS, RATE]},
        ({"loss": LOSS}, FLAG, SCALE),
        ({}, (), LOSS),
        np.float32(2.5),
        {"loss": np.array([2.0, 3.0])},
    ],
    ids=repr,
)
def test_the_loss_is_found(outputs):
    assert fetch_mean(read_output(outputs).loss) == pytest.approx(2.5)


@pytest.mark.parametrize("outputs", [None, (), [], {}, "done"])
def test_where_there_is_no_loss_there_is_none(outputs):
    assert read_output(outputs).loss is None


def test_mindformers_output_is_told_apart_by_its_flag():
    local = Tensor([1.0, 2.0], mindspore.float32)
    output = read_output((LOSS, FLAG, SCALE, RATE, NORM, local, (4, 4)))
    assert output == (LOSS, FLAG, SCALE, RATE, NORM, local)
    assert read_output((LOSS, VECTOR, SCALE)).overflow is None
