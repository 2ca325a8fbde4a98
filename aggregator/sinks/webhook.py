"""Posts findings to a web address, as JSON, from a thread of its own.

What is sent, one POST a finding, `Content-Type: application/json`: the object of its line in `findings.jsonl`,
and `run`, the run's name. Ordering: as found. A post that fails is tried again a few times, waiting longer each
time. More than so many in a minute wait; what no longer fits into the queue, and what could not be delivered, is
counted in `undelivered` and said in the log. The pipeline never waits.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from aggregator.sinks.findings import plain
from rankside.errors import ConfigError

if TYPE_CHECKING:
    from aggregator.detect.finding import Finding

_LOGGER = logging.getLogger("crossrank")
_WAITING = 1000
_TIMEOUT_SECONDS = 10.0


class Webhook:
    """One web address.

    url: http or https. run: the run's name. per_minute: most posts in a minute. retry_seconds: waits before the
    further attempts. close_seconds: how long closing waits for what is queued. undelivered: findings that were
    given up. Raises `ConfigError` for another kind of address.
    """

    def __init__(
        self,
        url: str,
        *,
        run: str,
        per_minute: int = 20,
        retry_seconds: tuple[float, ...] = (1.0, 4.0, 16.0),
        close_seconds: float = 10.0,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"webhook {url!r}: an address that begins with http:// or https:// is expected")
        self.undelivered = 0
        self._url = url
        self._run = run
        self._pause_seconds = 60.0 / per_minute
        self._burst = per_minute
        self._retry_seconds = retry_seconds
        self._close_seconds = close_seconds
        self._queue: queue.Queue[bytes | None] = queue.Queue(maxsize=_WAITING)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="crossrank-webhook", daemon=True)
        self._thread.start()

    def announce(self, finding: Finding) -> None:
        """Queue a finding."""
        try:
            self._queue.put_nowait(json.dumps({"run": self._run, **plain(finding)}).encode())
        except queue.Full:
            self._give_up("too many findings are waiting")

    def flush(self) -> None:
        """Do nothing: posts leave by themselves."""

    def close(self) -> None:
        """Let what is queued leave, for a bounded time."""
        deadline = time.monotonic() + self._close_seconds
        self._closing.set()
        try:
            self._queue.put(None, timeout=self._close_seconds)
        except queue.Full:
            self._give_up("too many findings are waiting")
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        allowance = float(self._burst)
        before = time.monotonic()
        while (body := self._queue.get()) is not None:
            now = time.monotonic()
            allowance = min(self._burst, allowance + (now - before) / self._pause_seconds)
            before = now
            if allowance < 1:
                self._closing.wait((1 - allowance) * self._pause_seconds)
            allowance -= 1
            self._deliver(body)

    def _deliver(self, body: bytes) -> None:
        for wait_seconds in (*self._retry_seconds, None):
            problem = self._post(body)
            if not problem:
                return
            if wait_seconds is None:
                break
            self._closing.wait(wait_seconds)
        self._give_up(problem)

    def _post(self, body: bytes) -> str:
        """Post once; return what went wrong, or ""."""
        request = urllib.request.Request(  # noqa: S310 (the scheme is checked at construction)
            self._url, data=body, headers={"Content-Type": "application/json"}, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS):  # noqa: S310
                return ""
        except (OSError, ValueError) as error:
            return str(error)

    def _give_up(self, problem: str) -> None:
        self.undelivered += 1
        if self.undelivered == 1:
            _LOGGER.warning(
                "a finding could not be posted to the webhook (%s); more are counted only", problem
            )
