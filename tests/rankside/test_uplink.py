"""The end of training waits for an aggregator that is started again just now, and not for one that takes nothing."""

from __future__ import annotations

import numpy as np

from rankside import messages
from rankside.gather import Gatherer
from rankside.schedule import Schedule
from rankside.uplink import Uplink


def test_an_aggregator_that_takes_nothing_is_given_up_also_when_the_connection_is_full(socket_folder):
    gatherer = Gatherer(Schedule())
    hello = messages.Hello("run", 0, 1, 1, "host", 1, {})
    uplink = Uplink(
        f"ipc://{socket_folder}/nobody", hello, gatherer.tags, buffer_bytes=1 << 20, heartbeat_seconds=1.0
    )
    try:
        for step in range(1, 2001):
            uplink.put(gatherer.single(step, {"loss": float(np.sqrt(step))}, 0.0))
        assert uplink.responsive
        for second in range(30):
            uplink.pump(now=float(second), step=2000, phase="leaving", phase_seconds=0.0, wait_seconds=0.0)
        assert not uplink.responsive
        assert not uplink.delivered
    finally:
        uplink.close()
