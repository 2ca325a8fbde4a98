"""Collects a digest of the trainable parameters, which replicas that are in step have in common.

MindSpore does not broadcast parameters: an unseeded initialisation trains different models on every rank, with
equal global gradient norms and nearly equal losses. Only a comparison of the parameters shows it.

A digest is the sum, modulo 2**24, of a 24-bit BLAKE2b digest of each piece's name and bytes: 24 bits, because
values are kept as float32, which holds such integers exactly; a sum, so that the order of pieces does not
matter. A difference of a single bit is missed with a probability of 2**-24.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import mindspore
import numpy as np

from rankside.training.collector import Collector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankside.training.collector import Draft, Training

DIGEST_BYTES = 3
PART_BYTES = 4 << 20
FIRST_STEP_BYTES = 64 << 20


class Piece(NamedTuple):
    """Elements start to stop of a flattened parameter."""

    name: str
    parameter: Any
    start: int
    stop: int


class Fingerprint(Collector):
    """Tag `param-fingerprint`, an integer below 2**24.

    every: steps between two digests.

    A digest covers one part of the parameters, of at most `part_bytes`; parts take turns, and which one is due
    depends on the step alone, so that all ranks digest the same part at the same step. After the first step of
    a training it covers the beginning of every parameter, and so it does, within `part_bytes`, after every step for
    which the aggregator asks for dense reports: then it shows at once where replicas part. The training thread copies
    the part, since the next step overwrites it; the digest is computed on the background thread.
    """

    name = "parameter fingerprint"

    def __init__(self, every: int, *, part_bytes: int = PART_BYTES) -> None:
        self._every = every
        self._part_bytes = part_bytes
        self._parts: list[list[Piece]] = []
        self._beginnings: list[Piece] = []
        self._small: list[Piece] = []
        self._recorder: Any = None
        self._first = False
        self._on_host = True

    def train_begin(self, training: Training) -> None:
        """Cut the parameters that replicas share into parts."""
        parameters = [
            parameter for parameter in training.weights if not getattr(parameter, "layerwise_parallel", False)
        ]
        self._parts = cut(parameters, self._part_bytes)
        several = max(1, len(parameters))
        self._beginnings = _beginnings(parameters, max(256, FIRST_STEP_BYTES // several))
        self._small = (
            self._parts[0] if len(self._parts) == 1 else _beginnings(parameters, self._part_bytes // several)
        )
        self._recorder = training.recorder
        self._first = True
        self._on_host = mindspore.get_context("device_target") == "CPU"

    def step_end(self, draft: Draft) -> None:
        """Copy the part that is due, and add its digest."""
        pieces = self._due(draft)
        self._first = False
        if pieces:
            copies = [(piece.name, self._copy(piece)) for piece in pieces]
            draft.values["param-fingerprint"] = partial(_digest_of_copies, copies)

    def _due(self, draft: Draft) -> Sequence[Piece]:
        if self._first:
            return self._beginnings
        turn = draft.step // self._every
        if self._parts and turn > (draft.step - draft.steps) // self._every:
            return self._parts[turn % len(self._parts)]
        return self._small if draft.step <= self._recorder.dense_until else ()

    def _copy(self, piece: Piece) -> Any:
        if str(piece.parameter.dtype) == "BFloat16":  # numpy has no such type; float32 holds its values
            return piece.parameter.reshape(-1)[piece.start : piece.stop].astype("float32")
        if self._on_host:  # the array is a view: nothing but the piece is copied
            return np.array(piece.parameter.asnumpy().reshape(-1)[piece.start : piece.stop])
        return piece.parameter.reshape(-1)[piece.start : piece.stop].copy()


def cut(parameters: Sequence[Any], part_bytes: int) -> list[list[Piece]]:
    """Return parts of at most so many bytes (one element at least), which together are all the parameters."""
    parts: list[list[Piece]] = []
    room = 0
    for parameter in parameters:
        start, size, item = 0, int(parameter.size), int(parameter.itemsize)
        while start < size:
            if room < item:
                parts.append([])
                room = max(part_bytes, item)
            stop = min(size, start + room // item)
            parts[-1].append(Piece(f"{parameter.name}[{start}]", parameter, start, stop))
            room -= (stop - start) * item
            start = stop
    return parts


def digest(pieces: Sequence[tuple[str, bytes]]) -> int:
    """Return the digest of named bytes, from 0 to 2**24 - 1, whatever their order."""
    total = 0
    for name, data in pieces:
        blake = hashlib.blake2b(name.encode() + b"\0", digest_size=DIGEST_BYTES)
        blake.update(data)
        total += int.from_bytes(blake.digest(), "little")
    return total % (1 << 8 * DIGEST_BYTES)


def _digest_of_copies(copies: Sequence[tuple[str, Any]]) -> float:
    return float(digest([(name, _bytes(copy)) for name, copy in copies]))


def _bytes(copy: Any) -> bytes:
    array = copy if isinstance(copy, np.ndarray) else copy.asnumpy()
    return np.ascontiguousarray(array).tobytes()


def _beginnings(parameters: Sequence[Any], share_bytes: int) -> list[Piece]:
    """Return the first elements of each parameter, at least one and at most so many bytes."""
    return [
        Piece(f"{each.name}[0]", each, 0, min(int(each.size), max(1, share_bytes // int(each.itemsize))))
        for each in parameters
    ]
