"""The command line that runs one of our own entry points in a Python of its own.

A training project may well keep a `launch.py` or an `aggregator/` of its own in the folder of its script or in the
current one, which would be first on the child's import path. So the child is handed this process's import path
with the folder that holds these packages in front.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_PROGRAM = (
    "import sys; sys.path[:] = sys.argv.pop(1).split({separator!r}); "
    "from {module} import {function}; sys.exit({function}())"
)


def python_program(module: str, function: str, *arguments: str) -> list[str]:
    """Return the command line that calls `module.function()` with `arguments` as its sys.argv[1:]."""
    code = _PROGRAM.format(separator=os.pathsep, module=module, function=function)
    path = os.pathsep.join([str(Path(__file__).absolute().parents[1]), *sys.path])
    return [sys.executable, "-c", code, path, *arguments]
