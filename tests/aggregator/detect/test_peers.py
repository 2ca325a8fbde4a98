import numpy as np
import pytest

from aggregator.detect import PeerGroups


def groups_of(grouping):
    return [row[there].tolist() for row, there in zip(grouping.members, grouping.present, strict=True)]


def test_without_coordinates_all_ranks_of_a_growing_world_are_peers():
    groups = PeerGroups()
    assert groups_of(groups.local(3)) == [[0, 1, 2]]
    assert groups_of(groups.local(5)) == [[0, 1, 2, 3, 4]]
    assert groups.local(5).peers_of(3) == (0, 1, 2, 4)


def test_the_layout_places_ranks_as_mindformers_does_stages_outermost_tensor_parallel_innermost():
    grouping = PeerGroups.from_layout({"dp": 2, "tp": 2, "pp": 2}).local(8)
    assert sorted(groups_of(grouping)) == [[0, 2], [1, 3], [4, 6], [5, 7]]


def test_experts_part_the_replicas_of_parameters_but_not_the_peers_of_the_loss():
    groups = PeerGroups.from_layout({"dp": 4, "ep": 2})
    assert groups_of(groups.local(4)) == [[0, 1, 2, 3]]
    assert sorted(groups_of(groups.replicas(4))) == [[0, 2], [1, 3]]


def test_context_parallel_ranks_see_other_tokens_and_hold_the_same_parameters():
    groups = PeerGroups.from_layout({"dp": 2, "cp": 2})
    assert sorted(groups_of(groups.local(4))) == [[0, 2], [1, 3]]
    assert groups_of(groups.replicas(4)) == [[0, 1, 2, 3]]


def test_a_rank_without_coordinates_stands_alone():
    grouping = PeerGroups.from_coordinates({0: {"dp": 0}, 1: {"dp": 1}}).local(3)
    assert sorted(groups_of(grouping)) == [[0, 1], [2]]


@pytest.mark.parametrize("sizes", [[3], [2, 1, 4], [1, 1]])
def test_gathering_and_scattering_give_every_rank_its_own_value_back(sizes):
    stages = np.repeat(np.arange(len(sizes)), sizes)
    np.random.default_rng(1).shuffle(stages)
    grouping = PeerGroups.from_coordinates({r: {"pp": int(s)} for r, s in enumerate(stages)}).local(
        len(stages)
    )
    values = np.arange(2.0 * len(stages)).reshape(-1, 2)
    np.testing.assert_array_equal(grouping.scatter(grouping.gather(values)), values)
    for row, members in zip(grouping.gather(values), groups_of(grouping), strict=True):
        np.testing.assert_array_equal(row[: len(members)], values[members])
        assert np.isnan(row[len(members) :]).all()


def test_an_unknown_coordinate_is_refused_by_name():
    with pytest.raises(ValueError, match="'stage'"):
        PeerGroups.from_coordinates({0: {"stage": 1}})
