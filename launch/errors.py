"""What ends a command before it has begun."""

from __future__ import annotations

from rankside.errors import CrossrankError


class UsageError(CrossrankError):
    """The command cannot be carried out as it was given; the message is one line that says what to change."""

    exit_code = 2
