"""The key file that lets ranks, relays and the aggregator of several machines know each other.

One file for a fleet, copied to every machine. Its owner alone may read it. It holds two CURVE key pairs: the
aggregator proves that it has the one, and everybody who connects that he has the other. The keys are never
logged.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, NamedTuple

import zmq

from rankside.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

_TITLE = "crossrank key 1"
_KEY_LENGTH = 40  # of a CURVE key in Z85


class Keys(NamedTuple):
    """Two CURVE key pairs, each key 40 bytes of Z85 text."""

    server_public: bytes
    server_secret: bytes
    client_public: bytes
    client_secret: bytes


def generate(path: Path) -> None:
    """Write a new key file with mode 0600. Raises `ConfigError` where the file exists or cannot be written."""
    keys = (*zmq.curve_keypair(), *zmq.curve_keypair())
    content = b"\n".join([_TITLE.encode(), *keys, b""])
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise ConfigError(f"{path} exists already; remove it first if its key is no longer in use") from error
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def load(path: Path) -> Keys:
    """Return the keys in the file.

    Raises `ConfigError` where it cannot be read, is no key file, or can be read by others than its owner.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            lines = file.read(4096).split(b"\n")
    except OSError as error:
        raise ConfigError(f"key file {path}: {error.strerror}; `crossrank keygen` makes one") from error
    if mode & 0o077:
        raise ConfigError(f"key file {path} has mode {mode:04o}: others could read it; `chmod 600` it")
    title, *texts = lines[:5]
    if title != _TITLE.encode() or len(texts) != len(Keys._fields) or not _are_pairs(keys := Keys(*texts)):
        raise ConfigError(f"{path} is not a crossrank key file; `crossrank keygen` makes one")
    return keys


def _are_pairs(keys: Keys) -> bool:
    """Return whether each public key belongs to its secret one."""
    if any(len(key) != _KEY_LENGTH for key in keys):
        return False
    try:
        publics = [zmq.curve_public(secret) for secret in (keys.server_secret, keys.client_secret)]
    except (zmq.ZMQError, ValueError):  # not the text of a key
        return False
    return publics == [keys.server_public, keys.client_public]
