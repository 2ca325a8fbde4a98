"""The exceptions that crossrank raises on purpose; each message says what was found, where, and what to do."""

from __future__ import annotations


class CrossrankError(Exception):
    """Root of everything that crossrank raises on purpose. exit_code: of a command that it ends."""

    exit_code = 1


class ConfigError(CrossrankError, ValueError):
    """An argument, option or environment variable has a value that cannot be used."""

    exit_code = 2


class RefusedError(CrossrankError):
    """The other side does not let this one in, and trying again would not change that."""

    exit_code = 3


class WireError(CrossrankError):
    """A message from the other side is not one of ours, or exceeds a limit."""


class TransportError(CrossrankError):
    """An endpoint cannot be bound or connected, or must not be used the way it was asked for."""

    exit_code = 2
