import json
from dataclasses import asdict

import numpy as np
from worlds import World, noisy

TAGS = ("loss", "local-grad-norm", "learning-rate", "grad-norm", "param-fingerprint", "data-time")


def values(rng, step, ranks=4):
    level = 0.5 + 2 * np.exp(-step / 100)
    return {
        "loss": noisy(rng, ranks, level=level),
        "local-grad-norm": level * np.exp(0.2 * rng.normal(size=ranks)),
        "learning-rate": np.full(ranks, 0.1),
        "grad-norm": np.full(ranks, 0.5 * level * np.exp(0.1 * rng.normal())),
        "param-fingerprint": np.full(ranks, rng.normal()),
        "data-time": 10 * np.exp(0.1 * rng.normal(size=ranks)),
    }


def everything_wrong(seed=1):
    rng = np.random.default_rng(seed)
    world = World(*TAGS)
    for step in range(1, 401):
        now = values(rng, step)
        if step >= 150:
            now["data-time"][1] *= 1.5
        if step >= 200:
            now["learning-rate"][0] = 0.2
        if step >= 250:
            now["local-grad-norm"][2] *= 40
        if step >= 260:
            now["loss"][2] = np.nan
        if step >= 261:
            now["loss"][:] = np.nan
        world.feed(*now.values())
    return world


def test_every_kind_is_found_with_its_rank_and_the_cause_is_told():
    world = everything_wrong()
    named = {each.kind: each.ranks for each in world.opened()}
    assert named == {"slow": (1,), "mismatch": (0,), "outlier": (2,), "nonfinite": (2,)}
    nonfinite = world.opened("nonfinite")[0]
    assert "rank 2: loss is NaN since step 260" in nonfinite.message
    assert "its local grad norm rose" in nonfinite.message
    assert "from step 250" in nonfinite.message


def test_findings_are_strict_json():
    for finding in everything_wrong().findings:
        json.dumps(asdict(finding), allow_nan=False)


def test_the_same_steps_give_the_same_findings():
    assert everything_wrong().findings == everything_wrong().findings


def test_no_fault_is_opened_twice_before_it_is_closed():
    open_now = set()
    for finding in everything_wrong().findings:
        assert (finding.id in open_now) == (finding.status != "open")
        (open_now.discard if finding.status == "closed" else open_now.add)(finding.id)


def test_healthy_training_is_silent_for_worlds_of_all_sizes():
    for ranks in (1, 2, 3, 4, 7, 64):
        rng = np.random.default_rng(ranks)
        world = World(*TAGS)
        for step in range(1, 401):
            world.feed(*values(rng, step, ranks).values())
        assert world.findings == []


def test_an_outlier_that_wanders_over_three_ranks_is_called_rotating():
    rng = np.random.default_rng(3)
    world = World("loss")
    for step in range(1, 1101):
        loss = noisy(rng, 6)
        for rank, onset in ((1, 200), (3, 450), (5, 700)):
            if onset <= step < onset + 100:
                loss[rank] += 2
        world.feed(loss)
    assert [(each.ranks, each.persistence) for each in world.opened("outlier")] == [
        ((1,), "transient"),
        ((3,), "transient"),
        ((5,), "rotating"),
    ]
    later = [each for each in world.findings if each.ranks == (5,)]
    assert {each.persistence for each in later} == {"rotating"}
    assert len(later) > 1


def test_a_restart_closes_what_is_open_and_what_goes_on_is_opened_anew():
    rng = np.random.default_rng(5)
    world = World("loss", "learning-rate")
    for step in (*range(1, 301), *range(251, 401)):
        loss = noisy(rng, 4) + (step >= 200) * np.array([0, 1, 0, 0])
        world.feed(loss, [0.1, 0.1, 0.2, 0.1], step=step, session_start=step == 251 and world.step == 300)
    told = [(each.kind, each.status, each.step) for each in world.findings if each.status != "update"]
    assert told[0] == ("mismatch", "open", 1)
    assert set(told[2:]) == {
        ("mismatch", "closed", 251),
        ("outlier", "closed", 251),
        ("mismatch", "open", 251),
    }
    closed = [each for each in world.findings if each.status == "closed"]
    assert all("training began again at step 251" in each.message for each in closed)
