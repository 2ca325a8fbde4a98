"""What the aggregator's and the relay's processes have in common: the hub, saying ready, being stopped."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
from typing import TYPE_CHECKING

from rankside import keys
from rankside.private_socket import remove_private_endpoint
from rankside.transport import Hub

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


def open_hub(endpoints: Sequence[str], *, key: Path | None, insecure: bool) -> Hub:
    """Listen on the endpoints.

    Raises `ConfigError` where the key file cannot be used and `TransportError` where an endpoint cannot.
    """
    _allow_connections()
    return Hub(*endpoints, keys=keys.load(key) if key is not None else None, insecure=insecure)


def close_hub(hub: Hub, *, for_good: bool) -> None:
    """Stop listening.

    for_good: nobody will listen there again, so that a socket folder which was made for this run is of no more use.
    """
    hub.close()
    if for_good:
        for endpoint in hub.endpoints:
            remove_private_endpoint(endpoint)


def say_ready(descriptor: int | None, *words: str) -> None:
    """Write the words as one line to the descriptor, where there is one, and close it.

    Whoever wanted to hear it may be gone; the ranks are served all the same.
    """
    if descriptor is not None:
        with contextlib.suppress(BrokenPipeError):
            os.write(descriptor, f"{' '.join(words)}\n".encode())
        os.close(descriptor)


def _allow_connections() -> None:
    """Allow as many open files as the system does: every rank's connection is one, and often 1024 are the default."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def stop_on_sigterm() -> Iterator[threading.Event]:
    """Give an event that a SIGTERM sets."""
    stopping = threading.Event()
    previous = signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    try:
        yield stopping
    finally:
        signal.signal(signal.SIGTERM, previous)
