"""Options of the command line that belong together, most of them in several commands; loads nothing but argparse."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def add_binds(parser: argparse.ArgumentParser) -> None:
    """Add where an aggregator or a relay listens."""
    parser.add_argument(
        "--bind",
        required=True,
        action="append",
        metavar="ENDPOINT",
        help="where to listen: ipc://PATH or tcp://ADDRESS:PORT; may be repeated",
    )


def add_descriptors(parser: argparse.ArgumentParser) -> None:
    """Add what ties an aggregator or a relay to whoever started it."""
    parser.add_argument(
        "--ready-fd", type=int, metavar="FD", help="write the endpoint to this descriptor once it listens"
    )
    parser.add_argument(
        "--lifeline-fd",
        type=int,
        metavar="FD",
        help="end of file on this descriptor: no more ranks will come",
    )


def add_security(parser: argparse.ArgumentParser) -> None:
    """Add who may connect."""
    parser.add_argument(
        "--key",
        type=Path,
        metavar="FILE",
        help="key file for connections between machines; the same on all of them (see crossrank keygen)",
    )
    parser.add_argument(
        "--insecure", action="store_true", help="allow connections between machines without a key"
    )


def add_logdir(parser: argparse.ArgumentParser) -> None:
    """Add where the runs lie."""
    parser.add_argument(
        "--logdir",
        type=Path,
        default=Path("runs"),
        metavar="DIR",
        help="folder that holds the runs (default: runs)",
    )


def add_waits(parser: argparse.ArgumentParser) -> None:
    """Add how long a step waits for its ranks."""
    parser.add_argument(
        "--max-wait",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds for which the ranks of a step wait for the missing ones (default: 30)",
    )
    parser.add_argument(
        "--max-lag",
        type=int,
        default=10_000,
        metavar="N",
        help="steps by which a rank may lag before a step is closed without it (default: 10000)",
    )


def add_detect(parser: argparse.ArgumentParser) -> None:
    """Add how ranks are compared."""
    parser.add_argument(
        "--detect",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change a threshold of detection; may be repeated (docs/detection.md explains them, a wrong name prints "
        "those that exist)",
    )
    parser.add_argument(
        "--layout",
        metavar="SIZES",
        help="parallel layout, such as dp=4,tp=2,pp=1, so that ranks are compared with their peers only "
        "(default: what the ranks know of it)",
    )


def add_reactions(parser: argparse.ArgumentParser) -> None:
    """Add what happens when something is found."""
    parser.add_argument(
        "--webhook",
        metavar="URL",
        help="post each finding there, as a line of findings.jsonl with the run's name",
    )
    parser.add_argument(
        "--stop-on-nonfinite",
        action="store_true",
        help="ask training for an orderly stop after a loss that is NaN or infinite",
    )
