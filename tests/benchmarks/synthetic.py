"""Ranks without training: blocks made beforehand, sent by one process to a real aggregator in another.

Directly, every rank has a connection of its own. Behind relays, a connection brings the hellos, heartbeats and
blocks of many ranks, as a relay would. Each rank gives a sign of life every second.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zmq
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from rankside import messages, window, wire
from rankside.tags import Tag

_AHEAD = 3  # steps that are sent before the aggregator has answered for an earlier one
_BEAT_SECONDS = 1.0
_DEADLINE_SECONDS = 300.0
TAGS = (*(Tag(f"tag-{i}") for i in range(13)), Tag("loss"), Tag("local-grad-norm"), Tag("data-time"))


class Way(NamedTuple):
    """How the ranks come. relays: connections that carry them all, or 0 where each has its own."""

    ranks: int
    relays: int
    steps: int


class Outcome(NamedTuple):
    """What the aggregator did. seconds: from the first block to the last merged step. stages: CPU seconds by stage.

    messages: those received in that time.
    """

    way: Way
    seconds: float
    messages: int
    stages: dict[str, float]
    peak_bytes: int
    run_dir: Path

    @property
    def steps_per_second(self):
        return self.way.steps / self.seconds


def run(way, folder, sockets):
    """Run one aggregator over these ranks, in `folder`, its socket in `sockets`."""
    allow_many_files()
    run_dir = folder / f"{way.ranks}-{way.relays}"
    report = folder / f"{run_dir.name}.json"
    endpoint = f"ipc://{sockets}/{run_dir.name}"
    ready_read, ready_write = os.pipe()
    lifeline_read, lifeline_write = os.pipe()
    settings = {
        "run_dir": str(run_dir), "bind": endpoint, "world_size": way.ranks, "report": str(report),
        "ready_fd": ready_write, "lifeline_fd": lifeline_read,
    }  # fmt: skip
    aggregator = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("measured_aggregator.py")), json.dumps(settings)],
        pass_fds=(ready_write, lifeline_read),
    )
    os.close(ready_write)
    os.close(lifeline_read)
    try:
        with contextlib.closing(_Fleet(way, endpoint)) as fleet:
            assert os.read(ready_read, 1000), "the aggregator did not start"
            began = fleet.train()
            os.close(lifeline_write)
            assert aggregator.wait(_DEADLINE_SECONDS) == 0
    finally:
        os.close(ready_read)
        aggregator.kill()
        aggregator.wait()
    figures = json.loads(report.read_text())
    end = json.loads((run_dir / "run.json").read_text())
    assert (end["merged_from"], end.get("incomplete")) == ("live", None), end["because"]
    assert end["last_step"] == way.steps
    seconds = figures["last_step_at"] - began
    return Outcome(way, seconds, figures["messages"], figures["stages"], figures["peak_bytes"], run_dir)


def ranks_values(ranks, step):
    """Return what the ranks report of a step, shape (ranks, tags)."""
    return 1.0 + 0.01 * np.random.default_rng(step).standard_normal((ranks, len(TAGS)))


def events(run_dir):
    """Return what stands in each merged event file: step, wall time and serialized values of every scalar event."""
    merged = run_dir / "merged"
    found = {}
    for path in sorted(merged.rglob("events.out.tfevents.*")):
        found.setdefault(path.parent.relative_to(merged), []).extend(
            (event.step, event.wall_time, event.summary.SerializeToString())
            for event in EventFileLoader(str(path)).Load()
            if event.HasField("summary") and event.wall_time < 1e9  # the layout of charts has the real clock
        )
    return found


def allow_many_files():
    """Let this process and its children have as many sockets as the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Fleet:
    """All ranks, and the connections that they have: each is one of a single socket, to need few descriptors."""

    def __init__(self, way, endpoint):
        self._way = way
        self._groups = np.array_split(np.arange(way.ranks), way.relays or way.ranks)
        self._payloads = [self._blocks(step) for step in range(1, way.steps + 1)]
        self._received = np.full(len(self._groups), -1)
        self._welcome = 0
        self._beaten = 0.0
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.SNDTIMEO, 60_000)
        self._socket.setsockopt(zmq.LINGER, 60_000)
        for group in range(len(self._groups)):
            self._socket.setsockopt(zmq.CONNECT_ROUTING_ID, _name(group))
            self._socket.connect(endpoint)

    def close(self):
        self._context.destroy()

    def train(self):
        """Send everything, and leave once all has arrived; return when the first block went out."""
        self._introduce()
        began = time.monotonic()
        for step, payloads in enumerate(self._payloads, start=1):
            for group, payload in enumerate(payloads):
                self._send(group, payload)
            if time.monotonic() >= self._beaten + _BEAT_SECONDS:
                self._beat(step)
            else:
                self._send(0, self._heartbeat(0, step))
            self._await(lambda step=step: self._received[0] >= step - _AHEAD)
        self._arrive(self._way.steps)
        for group, rank in self._members():
            self._send(group, wire.encode(messages.Goodbye(rank, 1, self._way.steps, "")))
        return began

    def _introduce(self):
        if self._way.relays:
            for group in range(len(self._groups)):
                self._send(group, wire.encode(messages.Join()))
            self._await(lambda: self._welcome == len(self._groups))
        for group, rank in self._members():
            run_name = f"{self._way.ranks}-{self._way.relays}"
            hello = messages.Hello(run_name, rank, 1, self._way.ranks, "elsewhere", 1, {})
            self._send(group, wire.encode(hello))
        for group in range(len(self._groups)):
            self._send(group, wire.encode(messages.Tags(0, TAGS)))
        self._arrive(0)

    def _members(self):
        return [(group, rank) for group, ranks in enumerate(self._groups) for rank in ranks.tolist()]

    def _arrive(self, sequence):
        """Wait until the aggregator says of every rank that it has this block, as ranks do before they leave."""
        self._beat(sequence)
        self._await(lambda: self._received.min() >= sequence, lambda: self._beat(sequence))

    def _await(self, condition, every_second=lambda: None):
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, "the aggregator does not answer"
            if not self._socket.poll(1000):
                every_second()
            with contextlib.suppress(zmq.Again):
                while True:
                    name, payload = self._socket.recv_multipart(zmq.NOBLOCK)
                    self._take(int(name), wire.decode(payload))

    def _take(self, group, message):
        assert not isinstance(message, (messages.Refused, messages.Unknown)), message
        if isinstance(message, messages.Pulse):
            self._received[group] = message.rows[:, 3].min()
        self._welcome += isinstance(message, messages.Welcome)

    def _send(self, group, payload):
        self._socket.send_multipart([_name(group), payload])

    def _beat(self, sequence):
        self._beaten = time.monotonic()
        for group in range(len(self._groups)):
            self._send(group, self._heartbeat(group, sequence))

    def _heartbeat(self, group, sequence):
        ranks = self._groups[group].tolist()
        return wire.encode(
            messages.Heartbeat(
                tuple(messages.Beat(rank, 1, 1, sequence, sequence, "step", 0.1) for rank in ranks)
            )
        )

    def _blocks(self, step):
        """Return the step's block for every connection."""
        columns = window.single(ranks_values(self._way.ranks, step))
        rows = np.stack(
            [np.arange(self._way.ranks), np.ones(self._way.ranks, int), np.full(self._way.ranks, step)],
            axis=1,
        )
        ids = np.arange(len(TAGS))
        return [
            wire.encode(
                messages.Block(step, rows[ranks], np.full(len(ranks), float(step)), ids, columns[:, ranks])
            )
            for ranks in self._groups
        ]


def _name(group):
    return b"%d" % group
