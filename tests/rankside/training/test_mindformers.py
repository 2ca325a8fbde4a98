"""mindformers training a tiny Llama on CPU is recorded by a line in its YAML configuration."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_training import curve, tags
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.event_pb2 import SessionLog

from rankside.training.mindformers import MindformersNumbers, _Writer

SCRIPT = Path(__file__).parent / "llama_training.py"

# What mindformers only writes where switches of a `tensorboard` section ask for it.
_BY_SWITCH = {"B-samples-per-day", "expert_load/layer_0/ep_0", "expert_load/layer_0/ep_1"}


def _train(folder, *switches, exit_code=0):
    environment = {
        **os.environ,
        "CROSSRANK_RUN_DIR": str(folder / "run"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    for name in ("CROSSRANK_ENDPOINT", "RANK_ID", "MS_ROLE"):
        environment.pop(name, None)
    result = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), *switches],
        env=environment,
        timeout=110,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == exit_code, result.stderr[-4000:]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of one training of 20 steps; what it recorded is in `run`, mindformers' own in `theirs`."""
    folder = tmp_path_factory.mktemp("llama")
    _train(folder)
    return folder


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """The folder of the same training without a `tensorboard` section, failed at step 17, resumed from step 15."""
    folder = tmp_path_factory.mktemp("llama")
    _train(folder, "--no-tensorboard", "--checkpoints", "--fail-at=17", exit_code=1)
    assert sorted(curve(folder / "run", "loss")) == list(range(1, 18))
    _train(folder, "--no-tensorboard", "--checkpoints", "--resume")
    return folder


def test_whatever_a_callback_calls_on_a_writer_that_is_not_there_does_nothing():
    writer = _Writer(MindformersNumbers(), None)
    assert writer.add_text("configuration", "a text", global_step=1) is None


def _theirs(folder, tag):
    run = next(path for path in (folder / "theirs").rglob("events*") if "rank" in str(path)).parent
    events = EventAccumulator(str(run), size_guidance={"scalars": 0})
    events.Reload()
    return {event.step: event.value for event in events.Scalars(tag)}


@pytest.mark.real
@pytest.mark.parametrize("tag", ["loss", "learning-rate", "grad-norm"])
def test_our_numbers_are_those_that_mindformers_writes_itself(trained, tag):
    theirs = _theirs(trained, tag)
    assert sorted(theirs) == list(range(1, 21))
    assert curve(trained / "run", tag) == pytest.approx(theirs, rel=1e-4)


@pytest.mark.real
def test_the_norm_before_a_reduction_that_a_rank_alone_has_not_is_the_global_one(trained):
    assert curve(trained / "run", "local-grad-norm") == pytest.approx(curve(trained / "run", "grad-norm"))


@pytest.mark.real
def test_tokens_are_counted_by_the_models_sequence_length(trained):
    samples = curve(trained / "run", "throughput")
    tokens = {step: 16 * value for step, value in samples.items()}
    assert curve(trained / "run", "token-throughput") == pytest.approx(tokens, rel=1e-6)


@pytest.mark.real
def test_what_only_mindformers_knows_is_taken_over(trained):
    recorded = tags(trained / "run")
    assert "batch-size" in recorded
    taken = [tag for tag in recorded if tag.startswith("adam_m_norm/")]
    assert taken
    assert curve(trained / "run", taken[0]) == pytest.approx(_theirs(trained, taken[0]), rel=1e-6)
    assert not [tag for tag in recorded if "samples" in tag and "day" not in tag]
    assert curve(trained / "run", "expert_load/layer_0/ep_1") == dict.fromkeys(range(1, 21), 0.75)
    assert curve(trained / "run", "max_attention_logit/layers.0/head_0") == dict.fromkeys(range(1, 21), 1.5)
    assert curve(trained / "run", "device_accum_local_lm_loss") == curve(trained / "run", "loss")


@pytest.mark.real
@pytest.mark.parametrize(
    "tag", ["loss", "learning-rate", "grad-norm", "adam_m_norm/model.layers.0.ffn_norm.weight"]
)
def test_a_resumed_training_goes_on_at_its_true_steps(trained, resumed, tag):
    points = curve(resumed / "run", tag)
    assert sorted(points) == list(range(1, 21))
    assert points == pytest.approx(curve(trained / "run", tag), rel=1e-4)


@pytest.mark.real
def test_a_resumed_training_begins_a_session_that_voids_the_steps_trained_again(resumed):
    files = sorted((resumed / "run" / "rank_0").glob("*tfevents*"))
    sessions = [
        event.step
        for file in files
        for event in EventFileLoader(str(file)).Load()
        if event.session_log.status == SessionLog.START
    ]
    assert sessions == [16, 16]


@pytest.mark.real
def test_without_a_tensorboard_section_what_mindformers_knows_is_taken_over_and_no_file_of_it_written(
    trained, resumed
):
    assert tags(resumed / "run") == tags(trained / "run") - _BY_SWITCH
    assert not (resumed / "theirs").exists()
    files = [path for path in resumed.rglob("*tfevents*") if "run" not in path.relative_to(resumed).parts]
    assert files == []
