"""`crossrank tensorboard`: TensorBoard on a run, kept quick however many ranks the run has.

TensorBoard slows down at a few hundred runs. A run with more ranks than asked for is therefore shown as its
merged curves and the curves of the ranks that a finding names, by way of a temporary folder of links; ranks
that come under suspicion later appear while TensorBoard runs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from launch.errors import UsageError
from launch.summary import read_findings
from launch.terminal import say, tell
from rankside.python_program import python_program

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MERGED = "merged"
_RANK_PREFIX = "rank_"
_REFRESH_SECONDS = 5.0


def open_tensorboard(folder: Path, *, per_rank_view: int, arguments: Sequence[str]) -> int:
    """Run TensorBoard on a run folder or on a folder of runs until it ends; return its exit code.

    per_rank_view: a run with more ranks than this shows merged curves and suspects only.
    arguments: handed on to TensorBoard. Raises UsageError when there is nothing to show.
    """
    if per_rank_view < 0:
        raise UsageError(f"--per-rank-view must be at least 0, not {per_rank_view}")
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise UsageError(f"{folder} {what}; give a run folder, or a folder of runs")
    run_dirs = list(find_runs(folder))
    if not run_dirs:
        raise UsageError(
            f"{folder} holds no run: no {_RANK_PREFIX}<id> or {_MERGED} folder in it or one level below"
        )
    if all(len(_rank_dirs(run_dir)) <= per_rank_view for run_dir in run_dirs):
        with _tensorboard(folder, arguments) as process:
            return _wait(process)
    with tempfile.TemporaryDirectory(prefix="crossrank-view-") as name:
        view = Path(name)
        for run_dir in run_dirs:
            link_view(run_dir, view / run_dir.resolve().name, per_rank_view=per_rank_view)
        hidden = sum(len(_rank_dirs(run_dir)) for run_dir in run_dirs) - len(
            list(view.glob(f"*/{_RANK_PREFIX}*"))
        )
        tell(f"{hidden} ranks without a finding are not shown; --per-rank-view sets the limit")
        with _tensorboard(view, arguments) as process:
            while True:
                try:
                    return _wait(process, timeout=_REFRESH_SECONDS)
                except subprocess.TimeoutExpired:
                    for run_dir in run_dirs:
                        link_view(run_dir, view / run_dir.resolve().name, per_rank_view=per_rank_view)


def find_runs(folder: Path) -> Iterator[Path]:
    """Yield the folder itself if it is a run, else the runs in it, by name."""
    if _is_run(folder):
        yield folder
    elif folder.is_dir():
        yield from (inner for inner in sorted(folder.iterdir()) if _is_run(inner))


def link_view(run_dir: Path, view_dir: Path, *, per_rank_view: int) -> None:
    """Bring `view_dir` up to date: links to the merged curves and to the ranks to be shown."""
    view_dir.mkdir(exist_ok=True)
    rank_dirs = _rank_dirs(run_dir)
    if len(rank_dirs) > per_rank_view:
        findings = read_findings(run_dir)
        suspects = {f"{_RANK_PREFIX}{rank}" for rank in (findings.ranks if findings else ())}
        rank_dirs = [rank_dir for rank_dir in rank_dirs if rank_dir.name in suspects]
    for shown in [*rank_dirs, *filter(Path.is_dir, [run_dir / _MERGED])]:
        link = view_dir / shown.name
        if not link.is_symlink():
            link.symlink_to(shown.resolve(), target_is_directory=True)


def _is_run(folder: Path) -> bool:
    return folder.is_dir() and ((folder / _MERGED).is_dir() or bool(_rank_dirs(folder)))


def _rank_dirs(run_dir: Path) -> list[Path]:
    return [path for path in run_dir.glob(f"{_RANK_PREFIX}[0-9]*") if path.is_dir()]


def _tensorboard(logdir: Path, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    command = python_program("tensorboard.main", "run_main", "--logdir", str(logdir), *arguments)
    return subprocess.Popen(command, env=os.environ)


def _wait(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
    """Wait for TensorBoard; it ends with this process, by Ctrl-C or SIGTERM."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = process.wait(timeout)
    except KeyboardInterrupt:
        process.send_signal(signal.SIGTERM)
        process.wait()
        return 0
    finally:
        signal.signal(signal.SIGTERM, before)
    if code < 0:
        say(f"TensorBoard was killed by signal {-code}")
    return code if code >= 0 else 128 - code
