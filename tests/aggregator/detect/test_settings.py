import inspect
from dataclasses import fields
from pathlib import Path

import pytest

from aggregator.detect import DetectionSettings, Finding
from aggregator.sinks.webhook import Webhook

PAGE = Path(__file__).parents[3] / "docs" / "detection.md"


def test_named_thresholds_are_set_and_the_others_keep_their_defaults():
    settings = DetectionSettings.from_pairs(["outlier_clip=3.5", " chronic_steps = 7"])
    assert settings == DetectionSettings(outlier_clip=3.5, chronic_steps=7)
    assert isinstance(settings.chronic_steps, int)


@pytest.mark.parametrize(
    ("pair", "complaint"),
    [
        ("outlier_sigmas=3", "outlier_clip, "),
        ("outlier_clip", "name=value"),
        ("outlier_clip=many", "a number from 2 to 20"),
        ("outlier_clip=1", "a number from 2 to 20"),
        ("outlier_clip=nan", "a number from 2 to 20"),
        ("chronic_steps=2.5", "a whole number from 2"),
    ],
)
def test_a_bad_pair_is_refused_with_the_name_and_what_is_accepted(pair, complaint):
    with pytest.raises(ValueError, match=complaint):
        DetectionSettings.from_pairs([pair])


def test_every_threshold_says_what_it_means_and_has_a_default_in_its_range():
    for each in fields(DetectionSettings):
        assert each.metadata["meaning"]
        assert each.metadata["low"] <= each.default <= each.metadata["high"]


def test_the_documented_thresholds_are_those_that_exist_with_default_range_unit_and_meaning():
    documented = {
        cells[0].strip("`"): tuple(cells[1:])
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| `") and len(cells := [cell.strip() for cell in line.split("|")[1:-1]]) == 5
    }
    assert documented == {
        each.name: (
            f"{each.default:g}",
            f"{each.metadata['low']:g} to {each.metadata['high']:g}",
            each.metadata["unit"],
            each.metadata["meaning"],
        )
        for each in fields(DetectionSettings)
    }


def test_every_kind_of_finding_and_every_field_that_is_sent_are_documented():
    page = PAGE.read_text(encoding="utf-8")
    for kind in ("nonfinite", "outlier", "mismatch", "slow", "stalled", "silent", "global"):
        assert any(line.startswith("## ") and kind in line for line in page.splitlines())
    for field in fields(Finding):
        assert f"`{field.name}`" in page


def test_what_the_page_says_of_the_webhook_is_what_it_does():
    page = PAGE.read_text(encoding="utf-8")
    defaults = inspect.signature(Webhook).parameters
    waits = [f"{seconds:g}" for seconds in defaults["retry_seconds"].default]
    assert f"{', '.join(waits[:-1])} and {waits[-1]} seconds" in page
    assert f"At most {defaults['per_minute'].default} posts leave in a minute" in page
