"""The grammar of the command line, with every command's help and exit codes; loads nothing but argparse.

What follows the first `--` of a command line is not for this parser.
"""

from __future__ import annotations

import argparse
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from launch.options import (
    add_binds,
    add_descriptors,
    add_detect,
    add_logdir,
    add_reactions,
    add_security,
    add_waits,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Commands = Callable[..., argparse.ArgumentParser]

_DESCRIPTION = """\
Puts the training metrics of all ranks of a MindSpore job side by side, draws
mean, min and max across ranks, and names the rank that went wrong.
"""

_RUN_DESCRIPTION = """\
Runs a training command with the aggregator beside it.

The workers are told through the environment where to report, and Model.train is
recorded without a change of the script; where the script has RankMonitor() in its
list of callbacks, that one is used. Training comes first: when the aggregator
crashes, training runs on and a new aggregator is started.

On several nodes, run the same on every node, as msrun wants it: the aggregator
runs on node 0, a relay on every other one.

crossrank stays until the command and all processes that it left running have
ended; msrun without --join=True returns at once, and its workers are waited for.
Ctrl-C and SIGTERM are handed on to the command and to what it left running.
When crossrank itself is killed, training runs on, and the aggregator ends when
the ranks have left.
"""

_RUN_EXIT_CODES = """\
exit codes:
  the command's own; 128 + N when signal N ended it, or ended what it left running
  2    wrong usage: nothing was started and nothing was created
  126  the command could not be started
"""

_DEMO_DESCRIPTION = """\
Trains a small net on this machine's CPU with msrun: four ranks, 200 steps, data
parallel. From step 120 on, one rank is silently damaged, as a bug in a training
script would do it; crossrank says which rank, which metric and which step.
"""

_DEMO_EXIT_CODES = """\
exit codes:
  0    done
  2    wrong usage, or mindspore is not installed
  else that of msrun
"""

_TENSORBOARD_DESCRIPTION = """\
Opens TensorBoard on a run folder, or on a folder of runs. A run of very many
ranks is shown as its merged curves and the ranks that a finding names.
"""

_TENSORBOARD_EXIT_CODES = """\
exit codes:
  0    ended by Ctrl-C
  2    wrong usage, or there is no run to show
  else that of TensorBoard
"""

_MERGE_DESCRIPTION = """\
Merges the rank_<id> folders of a run anew: merged curves and findings.jsonl, as
the run itself makes them, but from the event files. For a run whose ranks wrote
on several machines, name every folder that holds rank folders. Rank files are
only read; what is replaced is replaced when the new is complete.
"""

_MERGE_EXIT_CODES = """\
exit codes:
  0    done; damaged rank files are named, and what could be read of them is merged
  1    could not read or write: what was there is as it was
  2    wrong usage, or there is nothing to merge
"""

_SERVE_DESCRIPTION = """\
Runs the aggregator of one run until SIGTERM, or until the lifeline is closed
and the ranks have left. `crossrank run` starts it for you.
"""

_RELAY_DESCRIPTION = """\
Stands between the ranks of a node, or other relays, and the aggregator: turns
their blocks into one block a step. It may be killed and started again at any
time. Ends by SIGTERM, or when the lifeline is closed and the ranks have left.
`crossrank run` starts it for you.
"""

_KEYGEN_DESCRIPTION = """\
Makes a key file. Copy it to every machine of a job, readable by you alone, and
give it with --key: then nobody else can connect, and nobody can listen.
"""

_OVERHEAD_DESCRIPTION = """\
Runs your own command for a number of steps, in turns without and with monitoring,
and prints what monitoring adds to a step. The script is not changed: a timer is
attached to Model.train and Model.fit, which stops the training in an orderly way
after the last step. A RankMonitor of the script is left out in half of the turns.
The figures are printed at the end: the median and the quartiles of the time of a
step for each turn, and of the difference for the pairs of turns.
"""

_OVERHEAD_EXIT_CODES = """\
exit codes:
  0    done
  2    wrong usage: nothing was started
  3    the command failed in one of the turns, or trained too few steps
"""

_SERVE_EXIT_CODES = """\
exit codes:
  0    done, or stopped by SIGTERM
  1    failed
  2    wrong usage
"""


_RELAY_EXIT_CODE = """\
  3    the other side does not let it in
"""


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line; the usage is in --help."""

    def error(self, message: str) -> NoReturn:
        """Print the line and exit with code 2."""
        self.exit(2, f"crossrank: {message} (see {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse what is unknown here, where the command is known, and not in the parser above it."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown


def make_parser() -> argparse.ArgumentParser:
    """Return the parser; its results hold the `command` and whether it `takes_rest`, words after `--`."""
    parser = OneLineParser(
        prog="crossrank",
        description=_DESCRIPTION,
        epilog="exit codes: 0 done, 2 wrong usage; each command's --help names the others",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"crossrank {_version()}")
    subparsers = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)

    def command(name: str, *, takes_rest: bool = False, **texts: Any) -> argparse.ArgumentParser:
        formatter = argparse.RawDescriptionHelpFormatter
        added = subparsers.add_parser(name, formatter_class=formatter, allow_abbrev=False, **texts)
        added.set_defaults(takes_rest=takes_rest)
        return added

    _add_run(command)
    _add_demo(command)
    _add_tensorboard(command)
    _add_merge(command)
    _add_serve(command)
    _add_relay(command)
    _add_keygen(command)
    _add_overhead(command)
    return parser


def _version() -> str:
    try:
        return version("crossrank")
    except PackageNotFoundError:
        return "(not installed)"


def _add_run(command: Commands) -> None:
    parser = command(
        "run",
        takes_rest=True,
        help="run an msrun command with the aggregator beside it",
        description=_RUN_DESCRIPTION,
        epilog=_RUN_EXIT_CODES,
        usage="crossrank run [options] -- msrun [msrun options] train.py [arguments]",
    )
    add_logdir(parser)
    parser.add_argument(
        "--run-name",
        metavar="NAME",
        help="name of the run's folder; an existing one is continued (default: date and time)",
    )
    parser.add_argument(
        "--name-with",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a hyper-parameter to put into the default name; may be repeated",
    )
    parser.add_argument(
        "--bind",
        metavar="ENDPOINT",
        help="listen on tcp://ADDRESS:PORT, a loopback address; port 0 is any free one "
        "(default: a socket that only this user can reach)",
    )
    parser.add_argument(
        "--no-attach",
        dest="attach",
        action="store_false",
        help="record only scripts that have RankMonitor() in their list of callbacks",
    )
    parser.add_argument(
        "--port",
        type=int,
        metavar="N",
        help="with several nodes: port of the aggregator on node 0 (default: msrun's --master_port + 1)",
    )
    add_security(parser)
    add_waits(parser)
    add_detect(parser)
    add_reactions(parser)


def _add_demo(command: Commands) -> None:
    parser = command(
        "demo",
        help="train four ranks on this machine's CPU, one of them silently damaged",
        description=_DEMO_DESCRIPTION,
        epilog=_DEMO_EXIT_CODES,
    )
    add_logdir(parser)
    parser.add_argument("--healthy", action="store_true", help="damage no rank")
    parser.add_argument(
        "--tensorboard", action="store_true", help="then open TensorBoard on it, until Ctrl-C"
    )


def _add_tensorboard(command: Commands) -> None:
    parser = command(
        "tensorboard",
        takes_rest=True,
        help="open TensorBoard on a run",
        description=_TENSORBOARD_DESCRIPTION,
        epilog=_TENSORBOARD_EXIT_CODES,
        usage="crossrank tensorboard [options] FOLDER [-- tensorboard options]",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a run folder, or a folder of runs")
    parser.add_argument(
        "--per-rank-view",
        type=int,
        default=64,
        metavar="N",
        help="most ranks that a run may have for all to be shown (default: 64)",
    )


def _add_merge(command: Commands) -> None:
    parser = command(
        "merge",
        help="merge the ranks' event files anew",
        description=_MERGE_DESCRIPTION,
        epilog=_MERGE_EXIT_CODES,
    )
    parser.add_argument(
        "folders", type=Path, nargs="+", metavar="RUN_DIR", help="a folder that holds rank_<id> folders"
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="where to write (default: into the first RUN_DIR)"
    )
    add_detect(parser)


def _add_serve(command: Commands) -> None:
    parser = command(
        "serve",
        help="run the aggregator alone",
        description=_SERVE_DESCRIPTION,
        epilog=_SERVE_EXIT_CODES,
    )
    parser.add_argument("--run-dir", type=Path, required=True, metavar="DIR", help="the run's folder")
    add_binds(parser)
    parser.add_argument(
        "--world-size", type=int, metavar="N", help="number of ranks (default: what the ranks say)"
    )
    add_waits(parser)
    add_detect(parser)
    add_reactions(parser)
    add_security(parser)
    add_descriptors(parser)


def _add_relay(command: Commands) -> None:
    parser = command(
        "relay",
        help="forward a node's ranks to the aggregator as one block a step",
        description=_RELAY_DESCRIPTION,
        epilog=_SERVE_EXIT_CODES + _RELAY_EXIT_CODE,
    )
    add_binds(parser)
    parser.add_argument(
        "--upstream",
        required=True,
        metavar="ENDPOINT",
        help="where the aggregator or a further relay listens",
    )
    add_security(parser)
    add_descriptors(parser)


def _add_keygen(command: Commands) -> None:
    parser = command(
        "keygen",
        help="make the key file for a job on several machines",
        description=_KEYGEN_DESCRIPTION,
        epilog="exit codes:\n  0    done\n  2    wrong usage, the file exists or cannot be written",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the file to make")


def _add_overhead(command: Commands) -> None:
    parser = command(
        "overhead",
        takes_rest=True,
        help="measure what monitoring adds to a step of your command",
        description=_OVERHEAD_DESCRIPTION,
        epilog=_OVERHEAD_EXIT_CODES,
        usage="crossrank overhead [options] -- msrun [msrun options] train.py [arguments]",
    )
    parser.add_argument(
        "--steps", type=int, default=200, metavar="N", help="steps of each turn (default: 200)"
    )
    parser.add_argument("--repeat", type=int, default=2, metavar="K", help="pairs of turns (default: 2)")
