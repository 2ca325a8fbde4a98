"""Lines for the person at the terminal; a terminal or pipe that is gone is no error and costs no exit code."""

from __future__ import annotations

import os
import sys


def say(line: str) -> None:
    """Print one line about the course of things, on standard error."""
    try:
        print(f"crossrank: {line}", file=sys.stderr, flush=True)
    except OSError:
        _silence(2)


def tell(line: str) -> None:
    """Print one line of a result, on standard output."""
    try:
        print(f"crossrank: {line}", flush=True)
    except OSError:
        _silence(1)


def _silence(descriptor: int) -> None:
    """Send what is still buffered nowhere, so that the interpreter does not fail on it when it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
