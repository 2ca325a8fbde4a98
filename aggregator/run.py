"""Wires a run together: configuration, pipeline, sinks and server, in the one place where objects meet."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aggregator.align import Aligner
from aggregator.complete import complete
from aggregator.detect import DetectionSettings, PeerGroups, default_detectors
from aggregator.detect.silence import SilenceDetector
from aggregator.live import resume
from aggregator.live.guide import Guide
from aggregator.live.lifeline import Lifeline
from aggregator.live.members import Patience
from aggregator.live.processes import Processes
from aggregator.live.server import Server
from aggregator.live.service import Service
from aggregator.live.watch import Watch
from aggregator.pipeline import Pipeline
from aggregator.process import close_hub, open_hub, say_ready, stop_on_sigterm
from aggregator.sinks import run_file
from aggregator.sinks.findings import FindingsFile
from aggregator.sinks.group import SinkGroup
from aggregator.sinks.merged_runs import MergedRuns
from aggregator.sinks.run_file import RunFile
from aggregator.sinks.webhook import Webhook
from rankside.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What an aggregator is told.

    run_dir: the run's folder; its name is the run's name. bind: endpoints to listen on; the first is the
    one for the ranks of this machine. key: key file, which an endpoint beyond this machine needs unless
    `insecure`: plain TCP was asked for by name.
    world_size: how many ranks to expect, or None to learn it from the first one.
    max_wait_seconds, max_lag_steps: how long a step waits for missing ranks.
    patience: how long a rank may be silent.
    ready_fd: file descriptor to write the endpoint and a newline to as soon as the aggregator listens.
    lifeline_fd: read end of a pipe; when its other end closes, no further rank will come.
    detect: thresholds as "name=value". layout: sizes of the parallel layout, such as {"dp": 4, "tp": 2}; None
    to learn it from the ranks.
    stop_on_nonfinite: ask for an orderly stop of training after a loss that is not finite.
    webhook: address to which findings are posted, as `aggregator.sinks.webhook` says.
    """

    run_dir: Path
    bind: tuple[str, ...]
    key: Path | None = None
    insecure: bool = False
    world_size: int | None = None
    max_wait_seconds: float = 30.0
    max_lag_steps: int = 10_000
    patience: Patience = field(default_factory=Patience)
    ready_fd: int | None = None
    lifeline_fd: int | None = None
    detect: tuple[str, ...] = ()
    layout: Mapping[str, int] | None = None
    stop_on_nonfinite: bool = False
    webhook: str | None = None


def serve(options: ServeOptions) -> int:
    """Serve one run until it is over or a SIGTERM comes; return the exit code.

    Raises `TransportError` or `ConfigError` where it cannot begin; the folder is then as it was.
    """
    logging.basicConfig(format="crossrank: %(message)s", level=logging.INFO)
    settings = DetectionSettings.from_pairs(options.detect)
    hub = open_hub(options.bind, key=options.key, insecure=options.insecure)
    with stop_on_sigterm() as stopping:
        run_dir = options.run_dir
        _make(run_dir / "merged")
        state = resume.load(run_dir)
        whole = resume.cut_back(run_dir, state) and (state is None or state.complete)
        session_start = 0 if not whole else None
        if state is not None:
            session_start = state.closed_until + 1
        told = run_file.read(run_dir / "run.json")
        earlier = run_file.counts(told)
        aligner = Aligner(
            world_size=options.world_size,
            max_wait_seconds=options.max_wait_seconds,
            max_lag_steps=options.max_lag_steps,
        )
        if state is not None:
            incarnations = {rank: stored.incarnation for rank, stored in state.ranks.items()}
            aligner.resume(state.closed_until, incarnations)
            aligner.void = run_file.void(told)
        groups = PeerGroups.from_layout(options.layout) if options.layout else PeerGroups()
        guide = Guide(stop_on_nonfinite=options.stop_on_nonfinite)
        service = Service(
            aligner,
            run=run_dir.name,
            world_size=options.world_size,
            send=hub.send,
            stored=state.ranks if state else None,
            patience=options.patience,
            advise=guide.advise,
            place=groups.learn,
        )
        watch = Watch(service.members, SilenceDetector(settings))

        def look(now: float) -> None:
            for finding in watch.look(now=now):
                sinks.announce(finding)

        sinks = SinkGroup()
        merged = MergedRuns(run_dir / "merged", session_start=session_start)
        sinks.add("merged runs", steps=merged, findings=merged)
        sinks.add("findings", findings=FindingsFile(run_dir / "findings.jsonl"))
        if options.webhook is not None:
            sinks.add("webhook", findings=Webhook(options.webhook, run=run_dir.name))
        sinks.add("back channel", steps=guide, findings=guide)
        run_json = RunFile(run_dir / "run.json", lambda: _status(aligner, service, sinks, groups, earlier))
        sinks.add("run file", steps=run_json)
        pipeline = Pipeline(aligner, default_detectors(settings, groups), sinks)
        with contextlib.closing(Processes()) as processes:
            server = Server(
                hub,
                service,
                pipeline,
                run_dir=run_dir,
                lifeline=Lifeline(options.lifeline_fd),
                processes=processes,
                look=look,
            )
            say_ready(options.ready_fd, hub.endpoints[0])
            server.run(stopped=stopping.is_set)
        close_hub(hub, for_good=not stopping.is_set())
        complete(run_dir, aligner, service, sinks, continues_whole=whole)
    return 0


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the run folder {folder.parent}: {error.strerror}") from error


def _status(
    aligner: Aligner, service: Service, sinks: SinkGroup, groups: PeerGroups, earlier: Mapping[str, int]
) -> Mapping[str, object]:
    """Return the entries of run.json that change. earlier: what earlier aggregators of the run had counted."""
    members = list(service.members)
    counts = {
        **aligner.counts._asdict(),
        **service.members.counts,
        **service.counters,
    }
    return {
        "world_size": aligner.world_size,
        "layout": {str(rank): dict(place) for rank, place in sorted(groups.coordinates.items())},
        "last_step": aligner.closed_until,
        "void": {str(rank): ranges for rank, ranges in sorted(aligner.void.items()) if ranges},
        "ranks": {
            presence: sorted(m.hello.rank for m in members if m.presence.value == presence)
            for presence in ("live", "left", "lost")
        },
        "counts": {name: counts.get(name, 0) + earlier.get(name, 0) for name in {**counts, **earlier}},
        "sink_failures": dict(sinks.failures),
    }
