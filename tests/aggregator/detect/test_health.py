import numpy as np
import pytest
from worlds import World, noisy

from aggregator.detect import DetectionSettings

TAGS = ("loss", "grad-norm", "loss-scale", "learning-rate", "param-fingerprint")


def run(change, steps=400, seed=1, tags=TAGS, **settings):
    """Four ranks that are healthy but for `change`, which is given the step and the values."""
    rng = np.random.default_rng(seed)
    world = World(*tags, settings=DetectionSettings(**settings))
    for step in range(1, steps + 1):
        values = {
            "loss": noisy(rng, 4, level=0.5 + 2 * np.exp(-step / 100)),
            "grad-norm": np.full(4, np.exp(0.2 * rng.normal())),
            "loss-scale": np.full(4, 65536.0),
            "learning-rate": np.full(4, 0.1),
            "param-fingerprint": np.full(4, rng.normal()),
        }
        for tag in tags:
            values.setdefault(tag, np.ones(4))
        change(step, values)
        world.feed(*(values[tag] for tag in tags))
    return world


def after(onset, **changes):
    """A change that from step `onset` on replaces values by what a function of step and value gives."""

    def change(step, values):
        for name, replace in changes.items():
            tag = name.replace("_", "-")
            if step >= onset:
                values[tag] = replace(step, values[tag])

    return change


CASES = {
    "the loss jumps": (after(200, loss=lambda _, v: v + 10), "the loss jumped"),
    "the loss rises": (after(100, loss=lambda s, v: v + 0.01 * (s - 100)), "the loss has risen"),
    "the loss alternates": (after(100, loss=lambda s, v: v + 0.6 * (-1) ** s), "alternates between"),
    "the norm explodes": (after(200, grad_norm=lambda _, v: v * 1000), "it exploded"),
    "the norm vanishes": (after(200, grad_norm=lambda _, v: v * 1e-9), "it vanished"),
    "the loss scale sinks": (
        after(200, loss_scale=lambda s, v: np.maximum(v / 2.0 ** (s - 200), 1)),
        "loss-scale",
    ),
    "the weights stand still": (
        after(1, param_fingerprint=lambda s, _: np.full(4, float(s % 5))),
        "have not moved",
    ),
    "the loss never falls": (after(1, loss=lambda s, v: v - 2 * np.exp(-s / 100)), "has not fallen"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_hits_all_ranks_is_one_global_finding_that_names_nobody(case):
    change, words = CASES[case]
    world = run(change, steps=450, flat_steps=400)
    (finding,) = world.opened()
    assert (finding.kind, finding.ranks, finding.persistence) == ("global", (), "global")
    assert words in finding.message
    assert "no rank is to blame" in finding.message


def test_healthy_training_is_silent():
    assert run(lambda *_: None, steps=1500).findings == []


def test_one_wild_step_of_all_ranks_is_silent():
    def change(step, values):
        if step == 200:
            values["loss"] = values["loss"] + 50
            values["grad-norm"] = values["grad-norm"] * 1000

    assert run(change).findings == []


def test_the_learning_rate_that_rose_before_is_told_as_a_cause():
    def change(step, values):
        if step >= 195:
            values["learning-rate"] = np.full(4, 1.0)
        if step >= 200:
            values["loss"] = values["loss"] + 10

    (finding,) = run(change, steps=230).opened()
    assert "learning rate rose 10x (from 0.1) from step 195" in finding.message


def test_layers_without_gradient_are_listed():
    tags = ("loss", *(f"local-grad-norm/layer{i}" for i in range(3)))

    def change(step, values):
        values["local-grad-norm/layer1"] = np.zeros(4)

    (finding,) = run(change, tags=tags).opened()
    assert "1 of 3 layers" in finding.message
    assert "local-grad-norm/layer1" in finding.message


def test_what_a_single_rank_explains_is_told_with_that_rank_and_not_as_everybodys_fault():
    def change(step, values):
        if step >= 200:
            values["grad-norm"] = values["grad-norm"] * 1000
            values["loss"] = values["loss"] + np.array([0, 0, 3.0, 0])

    world = run(change)
    (finding,) = world.opened()
    assert (finding.kind, finding.ranks) == ("outlier", (2,))
    explained = [each for each in world.findings if each.evidence.get("explains")]
    assert explained[0].id == finding.id
    assert "this explains what all ranks show since step 200: grad-norm: it exploded" in explained[0].message


def test_of_two_ranks_the_one_whose_fault_is_nearest_explains_what_all_ranks_show():
    def change(step, values):
        if step >= 150:
            values["loss"] = values["loss"] + np.array([0, 0, 3.0, 0])
        if step == 200:
            values["local-grad-norm"] = np.array([np.nan, 1, 1, 1])
        if step > 200:
            values["loss"] = values["loss"] + 50

    world = run(change, tags=(*TAGS, "local-grad-norm"))
    explained = [each for each in world.findings if each.evidence.get("explains")]
    assert {(each.kind, each.ranks) for each in explained} == {("nonfinite", (0,))}


def test_what_a_fault_explains_is_told_in_its_later_lines_too_and_stays_short():
    def change(step, values):
        if step >= 200:
            values["loss"][2] += 1
        if step in {210, 211} or (step > 300 and step % 100 < 2):
            values["grad-norm"] *= 1000

    world = run(change, steps=1500)
    lines = [each for each in world.findings if each.kind == "outlier"]
    later = [each for each in lines if each.step > 240]
    assert later
    assert all(
        "this explains what all ranks show since step 210: grad-norm" in each.message for each in later[:1]
    )
    assert all(each.message.count("it exploded") <= 3 for each in lines)
    assert len(lines[-1].evidence["explains"]) == 3


@pytest.mark.parametrize(("factor", "words"), [(1e3, "exploded"), (1e-9, "vanished")])
def test_what_is_reported_at_every_tenth_step_is_dated_by_its_own_steps(factor, words):
    rng = np.random.default_rng(2)
    world = World("loss", "grad-norm")
    for step in range(1, 3201):
        norm = np.full(4, np.exp(0.2 * rng.normal()) * (factor if step >= 3000 else 1))
        loss = noisy(rng, 4, level=2 * np.exp(-step / 3000))
        world.feed(*(loss, norm)[: 1 if step % 10 else 2], tag_ids=[0] if step % 10 else [0, 1])
    (finding,) = world.opened()
    assert words in finding.message
    assert abs(finding.first_step - 3000) <= 10
