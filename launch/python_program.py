"""The command line that runs one of our own entry points in a Python of its own.

`python -m` would put the current folder first on the import path, where a training project may well keep a
`launch.py` or an `aggregator/`; the child is therefore handed this process's import path as it stands.
"""

from __future__ import annotations

import os
import sys

_PROGRAM = (
    "import sys; sys.path[:] = sys.argv.pop(1).split({separator!r}); "
    "from {module} import {function}; sys.exit({function}())"
)


def python_program(module: str, function: str, *arguments: str) -> list[str]:
    """Return the command line that calls `module.function()` with `arguments` as its sys.argv[1:]."""
    code = _PROGRAM.format(separator=os.pathsep, module=module, function=function)
    return [sys.executable, "-c", code, os.pathsep.join(sys.path), *arguments]
