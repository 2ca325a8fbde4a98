"""Replicas in step have the same fingerprint, and others have not."""

from __future__ import annotations

import hashlib
import random
from types import SimpleNamespace

import mindspore
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindspore import Parameter, Tensor, nn
from mindspore.train import Callback, Model
from small_training import curve, network, samples

from rankside import RankMonitor
from rankside.messages import Advice
from rankside.training.collector import Draft
from rankside.training.fingerprint import Fingerprint, cut, digest


def _parameters(*sizes):
    return [
        Parameter(Tensor(np.arange(size, dtype=np.float32)), name=f"p{i}") for i, size in enumerate(sizes)
    ]


@given(st.lists(st.integers(1, 300), min_size=1, max_size=8), st.integers(1, 400))
def test_parts_hold_every_element_once_and_keep_to_their_size(sizes, part_bytes):
    parts = cut(_parameters(*sizes), part_bytes)
    pieces = [piece for part in parts for piece in part]
    covered = [(p.parameter.name, i) for p in pieces for i in range(p.start, p.stop)]
    assert covered == [(f"p{n}", i) for n, size in enumerate(sizes) for i in range(size)]
    for part in parts:
        assert sum(4 * (p.stop - p.start) for p in part) <= max(part_bytes, 4)


@given(st.binary(min_size=1, max_size=64), st.data())
def test_a_digest_changes_with_every_single_bit(data, draw):
    bit = draw.draw(st.integers(0, 8 * len(data) - 1))
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    assert digest([("w", data)]) != digest([("w", bytes(flipped))])


def test_a_digest_does_not_depend_on_the_order_of_pieces_but_on_their_names():
    pieces = [(f"p{i}", bytes([i] * 9)) for i in range(20)]
    shuffled = random.Random(1).sample(pieces, len(pieces))
    assert digest(pieces) == digest(shuffled)
    assert digest([("a", b"1"), ("b", b"2")]) != digest([("a", b"2"), ("b", b"1")])


def test_a_digest_is_exact_as_float32():
    values = [digest([("w", str(i).encode())]) for i in range(2000)]
    assert all(int(np.float32(value)) == value for value in values)
    assert max(values) > 1 << 23


class Reader(Callback):
    """Notes every parameter as a step left it."""

    def __init__(self, net):
        super().__init__()
        self.net = net
        self.seen = {}

    def on_train_step_end(self, run_context):
        step = run_context.original_args()["cur_step_num"]
        self.seen[step] = {p.name: np.array(p.asnumpy()) for p in self.net.trainable_params()}

    def digests(self, steps):
        """Of all parameters, computed by hand."""
        return {step: self._digest(self.seen[step]) for step in steps}

    def _digest(self, arrays):
        total = 0
        for name, array in arrays.items():
            text = f"{name}[0]".encode() + b"\0" + array.tobytes()
            total += int.from_bytes(hashlib.blake2b(text, digest_size=3).digest(), "little")
        return total % 2**24


@pytest.mark.usefixtures("mode")
def test_the_first_step_is_digested_over_all_parameters_as_the_step_left_them(run_dir):
    net = network()
    monitor, seen = RankMonitor(log_every=0, fingerprint_every=5), Reader(net)
    model = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.1, 0.9))
    model.train(1, samples(12), callbacks=[monitor, seen])
    monitor.close()
    # This network fits into one part.
    assert curve(run_dir, "param-fingerprint") == seen.digests((1, 5, 10))


@pytest.mark.usefixtures("mode")
def test_every_step_is_digested_up_to_the_one_to_which_the_aggregator_asks_for_dense_reports(run_dir):
    class Asks(Callback):
        def on_train_step_end(self, run_context):
            if run_context.original_args()["cur_step_num"] == 3:
                advice = Advice(0, 0, dense_until=6, stacks=0, stop="", step=0, places=())
                monitor._record.recorder._shipper.adviser.follow(advice)

    net = network()
    monitor, seen = RankMonitor(log_every=0, fingerprint_every=10), Reader(net)
    model = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.1, 0.9))
    model.train(1, samples(12), callbacks=[monitor, seen, Asks()])
    monitor.close()
    assert curve(run_dir, "param-fingerprint") == seen.digests((1, 4, 5, 6, 10))


@given(st.lists(st.integers(1, 300), min_size=2, max_size=8), st.integers(8, 400))
def test_between_the_parts_turns_a_little_of_every_parameter_is_digested(sizes, part_bytes):
    parameters = _parameters(*sizes)
    collector = Fingerprint(100, part_bytes=part_bytes)
    collector.train_begin(SimpleNamespace(weights=parameters, recorder=SimpleNamespace(dense_until=200)))
    digested = {}
    for step in (1, 150, 200, 201):
        draft = Draft(step=step, steps=1, reports=True, output=None)
        digested[step] = {piece.parameter.name for piece in collector._due(draft)}
        collector.step_end(draft)
    everything = {parameter.name for parameter in parameters}
    assert digested[1] == digested[150] == everything
    assert digested[200] <= everything
    assert digested[201] == set()


def test_different_initialisations_differ_at_the_first_step(tmp_path, monkeypatch, graph_mode):
    found = []
    for seed in (1, 1, 2):
        folder = tmp_path / f"run{len(found)}"
        monkeypatch.setenv("CROSSRANK_RUN_DIR", str(folder))
        net = network(seed=seed)
        monitor = RankMonitor(log_every=0)
        mindspore.set_seed(1)
        Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1)).train(
            1, samples(2), callbacks=[monitor]
        )
        monitor.close()
        found.append(curve(folder, "param-fingerprint"))
    assert found[0] == found[1] != found[2]
    assert sorted(found[0]) == [1]
