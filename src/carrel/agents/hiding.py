"""A driver that asks for permissions keeps its agent's hands off its own input: a command that
was allowed could answer the next question by itself there."""

from __future__ import annotations

_PR_SET_DUMPABLE = 4


def hide() -> None:
    """This process from others of the same user, until it becomes another program. Root sees
    it all the same."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
