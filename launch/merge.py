"""`crossrank merge`: the merged curves and findings of a run, made anew from the ranks' event files."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from rich.console import Console

from aggregator.rebuild import merge_run
from launch.errors import UsageError
from launch.run_folders import lock_run_dir
from launch.terminal import say, tell
from rankside.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path


def merge(
    folders: Sequence[Path],
    *,
    output: Path | None = None,
    detect: Sequence[str] = (),
    layout: Mapping[str, int] | None = None,
) -> int:
    """Merge the rank folders in `folders` into `output`, the first of them unless given; return the exit code.

    layout: sizes of the parallel layout; None for what the run says of it.
    Shows how far it is where standard error is a terminal, and names what was damaged. Raises UsageError where
    there is nothing to merge, or where the run still goes on.
    """
    target = folders[0] if output is None else output
    try:
        with _claimed(target), _progress() as progress:
            damages = merge_run(
                folders, output=target, detect=tuple(detect), layout=layout, progress=progress
            )
    except ConfigError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        say(f"cannot merge into {target}: {error}")
        return 1
    for damage in damages:
        say(f"damaged: {damage}; what stands before it is merged")
    tell(f"merged curves: {target / 'merged'}")
    return 0


@contextlib.contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """Keep the run from starting, and refuse one that goes on, while its merged curves are replaced."""
    if not folder.is_dir():
        yield
        return
    try:
        descriptor = lock_run_dir(folder)
    except UsageError:
        raise UsageError(
            f"the run {folder} still goes on, and merges by itself at its end; --output writes elsewhere"
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("") as status:
        yield status.update
