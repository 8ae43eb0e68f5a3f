"""What one attempt of the probe is, and how its end is judged.

An attempt acts. When the kernel says no it raises OSError with one of its `refusals`;
when there was nothing to get it raises `ProbeRefused`; when it got through it returns what it
saw. Everything else that can come of it (another errno, another exception, no answer in
time) counts as not refused: a proof that cannot be read is no proof.
"""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import NamedTuple

Targets = Mapping[str, object]

BUBBLEWRAP = "bubblewrap"
LANDLOCK = "landlock"
CONFINING = frozenset({BUBBLEWRAP, LANDLOCK})
ONLY_BUBBLEWRAP = frozenset({BUBBLEWRAP})

ANY_NETWORK = frozenset({"none", "open"})
NO_NETWORK = frozenset({"none"})

DENIED = frozenset({errno.EPERM, errno.EACCES, errno.ENOSYS})
HIDDEN = DENIED | {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ESRCH,
    errno.EROFS,
    errno.EXDEV,
    errno.ENXIO,
    errno.ENODEV,
}
UNREACHABLE = DENIED | {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ECONNREFUSED,
    errno.ENETUNREACH,
    errno.EHOSTUNREACH,
    errno.EAFNOSUPPORT,
    errno.EPROTONOSUPPORT,
    errno.ESOCKTNOSUPPORT,
}

ATTEMPT_TIMEOUTS_S = (2.0, 10.0)
"""A refusal takes microseconds, on a starved machine some tenths of a second. What takes
longer got through to something slow; or it has a tenth of a processor on a machine with much to
do, and so has a second try."""


class ProbeRefused(Exception):
    """The attempt came to nothing, though no system call failed."""


class NoTarget(Exception):
    """The runtime did not say what to attack, so nothing was proven."""


class TimedOut(Exception):
    """The attempt neither failed nor came to an end."""


def once(_targets: Targets) -> Sequence[str]:
    """For attempts that have no subject."""
    return ("",)


class ProbeAttempt(NamedTuple):
    """`over` gives the subjects to try, each one entry of the result; `name` may hold `{}`
    for the subject. `runtimes` and `networks` are those that claim to refuse it."""

    name: str
    act: Callable[[Targets, str], str]
    over: Callable[[Targets], Sequence[str]] = once
    refusals: frozenset[int] = DENIED
    runtimes: frozenset[str] = CONFINING
    networks: frozenset[str] = ANY_NETWORK
    own_ids: bool = True
    """Claimed as well where the sandbox has the ids of an image, its root among them."""
    in_ranges: bool = False
    """Claimed only where these are a range of the host's."""

    def claimed_by(self, targets: Targets) -> bool:
        claimed = targets["runtime"] in self.runtimes and targets["network"] in self.networks
        claimed = claimed and (self.own_ids or not targets.get("own_ids"))
        return claimed and (not self.in_ranges or bool(targets.get("range")))


def result(name: str, refused: bool, detail: str) -> dict[str, object]:
    return {"name": name, "refused": refused, "detail": detail}


def carry_out(attempt: ProbeAttempt, targets: Targets) -> list[dict[str, object]]:
    """One result for each subject."""
    try:
        subjects = attempt.over(targets)
    except Exception as error:  # NoTarget, or a fault in here: nothing was proven
        return [result(attempt.name.replace(" {}", ""), False, _describe(error))]
    return [_one(attempt, targets, subject) for subject in subjects]


def _one(attempt: ProbeAttempt, targets: Targets, subject: str) -> dict[str, object]:
    name = attempt.name.format(subject).rstrip()
    try:
        return result(name, False, _tried(attempt.act, targets, subject))
    except ProbeRefused as nothing:
        return result(name, True, str(nothing))
    except OSError as error:
        code = errno.errorcode.get(error.errno or 0, str(error.errno))
        if error.errno in attempt.refusals:
            return result(name, True, code)
        return result(name, False, f"unexpected {code}: {error}")
    except Exception as error:  # whatever it is, it is no refusal, and must be seen
        return result(name, False, _describe(error))


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _tried(act: Callable[[Targets, str], str], targets: Targets, subject: str) -> str:
    first, last = ATTEMPT_TIMEOUTS_S
    try:
        return _bounded(act, targets, subject, first)
    except TimedOut:
        return _bounded(act, targets, subject, last)


def _bounded(
    act: Callable[[Targets, str], str], targets: Targets, subject: str, timeout_s: float
) -> str:
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        return act(targets, subject)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def give_up(_signal: int, _frame: FrameType | None) -> None:
    raise TimedOut("it did not come to an end")


def text(targets: Targets, key: str) -> str:
    value = targets.get(key)
    if not isinstance(value, str) or not value:
        raise NoTarget(f"{key!r} was not given")
    return value


def number(targets: Targets, key: str) -> int:
    value = targets.get(key)
    if not isinstance(value, int) or value <= 0:
        raise NoTarget(f"{key!r} was not given")
    return value


def texts(targets: Targets, key: str) -> Sequence[str]:
    value = targets.get(key)
    if not isinstance(value, (list, tuple)) or not value:
        raise NoTarget(f"{key!r} was not given")
    return [str(item) for item in value]


def scratch(targets: Targets) -> str:
    """A folder in which the sandbox may write."""
    return str(targets.get("scratch") or "/tmp")
