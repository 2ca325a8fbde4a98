from dataclasses import fields

import pytest

from aggregator.detect import DetectionSettings


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
