"""What `crossrank run` attaches leaves the user's interpreter as it would be without it, but for the recording."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

if TYPE_CHECKING:
    from pathlib import Path

    from workshop import Workshop

_SHOW = """
import json, pathlib, sys
shown = {"path": sys.path, "finders": [str(finder).partition(" object at")[0] for finder in sys.meta_path]}
pathlib.Path(sys.argv[1]).write_text(json.dumps(shown))
"""

# Stands for mindspore where only its import matters.
_STAND_IN = "inside = __name__\n"

_TRAINING = """
import sys
import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.train import Model
{imports}
ms.set_context(device_target="CPU")
x = np.ones((12, 4), np.float32)
data = ms.dataset.NumpySlicesDataset({{"x": x, "y": x[:, :2]}}, shuffle=False).batch(2)
net = nn.Dense(4, 2)
Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1)).train(1, data, callbacks={callbacks})
"""


def _shown(workshop: Workshop, *options: str) -> dict[str, list[str]]:
    done = workshop.run("run", *options, "--", *workshop.script("show.py", _SHOW), "shown")
    assert done.returncode == 0, done.stderr
    return json.loads((workshop.folder / "shown").read_text())


def test_import_path_and_finders_of_a_script_without_mindspore_are_as_without_us(workshop: Workshop) -> None:
    """One finder stands in front until mindspore is imported; it answers for no other module."""
    plain, attached = _shown(workshop, "--no-attach"), _shown(workshop)
    assert attached["path"] == plain["path"]
    assert attached["finders"][1:] == plain["finders"]
    assert "sitecustomize._Finder" in attached["finders"][0]


def test_the_finder_is_gone_and_the_loader_the_right_one_once_mindspore_is_imported(
    workshop: Workshop,
) -> None:
    (workshop.folder / "mindspore.py").write_text(_STAND_IN)
    command = workshop.script(
        "import_it.py",
        "import mindspore, sys\n"
        "assert type(mindspore.__spec__.loader).__name__ == 'SourceFileLoader', mindspore.__spec__.loader\n"
        "assert not any('sitecustomize' in str(finder) for finder in sys.meta_path)\n",
    )
    done = workshop.run("run", "--", *command)
    assert done.returncode == 0, done.stderr


def test_an_interpreter_that_cannot_record_says_one_line_and_runs_on(workshop: Workshop) -> None:
    """A mindspore without Model stands for a Python whose packages do not fit."""
    (workshop.folder / "mindspore.py").write_text("")
    command = workshop.script("import_it.py", "import mindspore, pathlib\npathlib.Path('ran').touch()\n")
    done = workshop.run("run", "--", *command)
    assert done.returncode == 0
    assert (workshop.folder / "ran").exists()
    assert done.stderr.count("this process is not recorded") == 1


@pytest.mark.parametrize(("variable", "value"), [("MS_ROLE", "MS_SCHED"), ("CROSSRANK_ATTACHED", "0")])
def test_neither_the_scheduler_nor_a_child_of_a_recorded_worker_is_attached(
    workshop: Workshop, variable: str, value: str
) -> None:
    (workshop.folder / "mindspore.py").write_text("")
    command = workshop.script("import_it.py", "import mindspore\n")
    done = workshop.run("run", "--", *command, more={variable: value})
    assert done.returncode == 0
    assert "not recorded" not in done.stderr


def test_msrun_itself_is_not_attached(workshop: Workshop) -> None:
    (workshop.folder / "mindspore.py").write_text("")
    done = workshop.run("run", "--", *workshop.script("msrun", "import mindspore\n"))
    assert done.returncode == 0
    assert "not recorded" not in done.stderr


def _own_sitecustomize(workshop: Workshop, text: str) -> dict[str, str]:
    folder = workshop.folder / "own"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(text)
    return {"PYTHONPATH": str(folder)}


def test_a_sitecustomize_of_the_users_own_runs(workshop: Workshop) -> None:
    more = _own_sitecustomize(workshop, "import builtins\nbuiltins.own = __file__\n")
    command = workshop.script("show.py", "import sitecustomize\nassert own == sitecustomize.__file__\n")
    done = workshop.run("run", "--", *command, more=more)
    assert done.returncode == 0, done.stderr


def test_a_sitecustomize_of_the_users_own_that_raises_does_as_much_as_without_us(workshop: Workshop) -> None:
    """Python says so and goes on."""
    more = _own_sitecustomize(workshop, "raise RuntimeError('of the user')\n")
    command = workshop.script("go_on.py", "import pathlib\npathlib.Path('ran').touch()\n")
    done = workshop.run("run", "--", *command, more=more)
    assert done.returncode == 0
    assert (workshop.folder / "ran").exists()
    assert "of the user" in done.stderr


def _train(workshop: Workshop, script: str, *options: str) -> Path:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (workshop.folder / "train.py").write_text(script)
    msrun = ["msrun", "--worker_num=1", "--local_worker_num=1", "--join=True", f"--master_port={port}"]
    done = workshop.run("run", "--run-name", "mine", *options, "--", *msrun, "--log_dir=logs", "train.py")
    assert done.returncode == 0, done.stderr
    return workshop.folder / "runs" / "mine"


def _loss_steps(run_dir: Path) -> list[int]:
    events = EventAccumulator(str(run_dir / "rank_0"))
    events.Reload()
    return [event.step for event in events.Scalars("loss")]


@pytest.mark.real
def test_an_unchanged_script_under_msrun_is_recorded(workshop: Workshop) -> None:
    run_dir = _train(workshop, _TRAINING.format(imports="", callbacks="None"))
    assert _loss_steps(run_dir) == [1, 2, 3, 4, 5, 6]


@pytest.mark.real
def test_a_monitor_of_the_script_is_the_one_that_records(workshop: Workshop) -> None:
    """It records every second step, which the attached one would not."""
    script = _TRAINING.format(imports="from rankside import RankMonitor", callbacks="[RankMonitor(every=2)]")
    steps = _loss_steps(_train(workshop, script))
    assert {2, 4, 6} <= set(steps)
    assert {3, 5}.isdisjoint(steps)


@pytest.mark.real
def test_nothing_is_recorded_of_an_unchanged_script_with_no_attach(workshop: Workshop) -> None:
    run_dir = _train(workshop, _TRAINING.format(imports="", callbacks="None"), "--no-attach")
    assert not (run_dir / "rank_0").exists()
