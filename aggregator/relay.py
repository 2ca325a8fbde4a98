"""Wires a relay together: hub, link, relay and loop."""

from __future__ import annotations

import logging
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aggregator.live.lifeline import Lifeline
from aggregator.live.processes import Processes
from aggregator.live.relay import Relay
from aggregator.live.relay_server import RelayServer
from aggregator.process import close_hub, open_hub, say_ready, stop_on_sigterm
from rankside import keys
from rankside.transport import Link

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayOptions:
    """What a relay is told.

    bind: endpoints to listen on; the first is the one for the ranks of this machine. upstream: endpoint of the
    root or of a further relay. key: key file for TCP beyond this machine, which is needed unless `insecure`.
    ready_fd: file descriptor to write the endpoint, the run's name and a newline to, once the root has named it.
    lifeline_fd: read end of a pipe; when its other end closes, no further rank will come.
    """

    bind: tuple[str, ...]
    upstream: str
    key: Path | None = None
    insecure: bool = False
    ready_fd: int | None = None
    lifeline_fd: int | None = None


def relay(options: RelayOptions) -> int:
    """Relay until the ranks of this node have left or a SIGTERM comes; return the exit code.

    Raises `TransportError` or `ConfigError` where it cannot begin, and `RefusedError` where the root does not let it
    in.
    """
    logging.basicConfig(format="crossrank relay: %(message)s", level=logging.INFO)
    key = keys.load(options.key) if options.key is not None else None
    lifeline = Lifeline(options.lifeline_fd)
    with stop_on_sigterm() as stopping, ExitStack() as stack:
        link = Link(options.upstream, keys=key, insecure=options.insecure)
        stack.callback(link.close, linger_seconds=2.0)
        hub = open_hub(options.bind, key=options.key, insecure=options.insecure)
        stack.callback(lambda: close_hub(hub, for_good=lifeline.cut and not stopping.is_set()))
        relaying = Relay(send_down=hub.send, send_up=link.send)
        processes = stack.enter_context(closing(Processes()))
        server = RelayServer(hub, link, relaying, lifeline=lifeline, processes=processes)
        run = server.join(stopped=stopping.is_set)
        if run:
            say_ready(options.ready_fd, hub.endpoints[0], run)
            server.run(stopped=stopping.is_set)
    return 0
