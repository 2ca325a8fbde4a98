"""What is known about a tag: its unit, its meaning, and with whom its values may be compared.

A `Tag` travels once per connection in the tag table, stands in the rank's event file as the summary's
description, and in `run.json`. Names are mindformers' own where it has one, so that its runs overlay ours.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class TagKind(str, Enum):
    """With whom, and how, the values of a tag may be compared.

    LOCAL: differs from rank to rank by nature (the loss before reduction); compared with the peers' spread.
    REPLICATED: must be equal, bit for bit, on all replicas (learning rate, global gradient norm).
    TIMING: a rank's own time, in milliseconds; only being above the peers is bad.
    INFO: shown, never judged.
    UNKNOWN: not declared; the detectors learn whether it is replicated or local.
    """

    LOCAL = "local"
    REPLICATED = "replicated"
    TIMING = "timing"
    INFO = "info"
    UNKNOWN = "unknown"


class Tag(NamedTuple):
    """One metric: its name as TensorBoard shows it, and what it means."""

    name: str
    kind: TagKind = TagKind.UNKNOWN
    unit: str = ""
    description: str = ""


_WELL_KNOWN = {
    tag.name: tag
    for tag in (
        Tag("loss", TagKind.LOCAL, "", "loss of this rank's batch, before any reduction"),
        Tag("learning-rate", TagKind.REPLICATED, "", "learning rate that this step used"),
        Tag("loss-scale", TagKind.REPLICATED, "", "loss scale that this step used"),
        Tag("overflow", TagKind.REPLICATED, "", "1 where this step overflowed and was skipped, else 0"),
        Tag("grad-norm", TagKind.REPLICATED, "", "L2 norm of the gradients after the all-reduce"),
        Tag("local-grad-norm", TagKind.LOCAL, "", "L2 norm of this rank's gradients before the all-reduce"),
        Tag("iteration-time", TagKind.INFO, "ms", "from the end of the last step to the end of this one"),
        Tag("data-time", TagKind.TIMING, "ms", "from the end of the last step to the start of this one"),
        Tag("host-time", TagKind.TIMING, "ms", "this rank's own time outside the step, callbacks included"),
        Tag(
            "throughput",
            TagKind.INFO,
            "samples/s",
            "samples of this rank per second; all ranks' add up",
        ),
        Tag(
            "token-throughput",
            TagKind.INFO,
            "tokens/s",
            "tokens of this rank per second; all ranks' add up",
        ),
        Tag("param-fingerprint", TagKind.REPLICATED, "", "digest of a part of the trainable parameters"),
        Tag("memory", TagKind.INFO, "MiB", "resident memory of the process"),
        Tag("device-memory", TagKind.INFO, "MiB", "device memory allocated"),
        Tag("device-memory-peak", TagKind.INFO, "MiB", "peak of the device memory allocated"),
    )
}


NAME_LIMIT_BYTES = 512


def is_tag_name(name: object) -> bool:
    """Whether this can be the name of a tag: a printable, not empty text of at most `NAME_LIMIT_BYTES` in UTF-8."""
    return (
        isinstance(name, str) and name != "" and name.isprintable() and len(name.encode()) <= NAME_LIMIT_BYTES
    )


def well_known(name: str) -> Tag:
    """Return what is known about the tag of this name; an unknown name gives a bare `Tag`."""
    return _WELL_KNOWN.get(name) or Tag(name)
