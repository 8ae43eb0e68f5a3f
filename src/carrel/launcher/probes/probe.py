"""The proof of isolation: tries, from inside a sandbox, what the sandbox must refuse.

It runs in a process that the launcher forked and that entered the sandbox without
executing anything, so the sandbox needs no interpreter. For the same reason everything is
imported before: inside, the files of the interpreter may not be there.

Targets, all plain JSON:

    runtime              "bubblewrap" or "landlock"
    network              "none" or "open"
    forbidden_paths      files and folders of the host that must be out of reach: another
                         space's tree, the data folder, a home. They must exist on the
                         host, and none may be a path that the sandbox has of its own.
    shown                optional: host paths that the sandbox has at the same path by
                         design (binds); a forbidden folder above one may show the way
    host_pid             a process outside, with the host's number for it
    host_pid_start       optional: its start time, field 22 of /proc/PID/stat, so that a
                         process inside with the same number is not taken for it
    host_loopback_port   a TCP listener on the host's 127.0.0.1 (only without network)
    abstract_socket      the name of a listening abstract Unix socket of the host
    unix_sockets         optional: listening sockets of the host by path
    secret_env           a string that is in the environment of `host_pid`
    scratch              optional: a folder the sandbox may write in; /tmp
    uncovered            optional: names of attempts that the runtime says it does not
                         cover on this machine

What is claimed by whom stands in the tables of `carrel.launcher.probes`. Landlock's lists
leave out what it cannot do: hiding that processes and paths exist, UDP, other processes'
priorities.
"""

from __future__ import annotations

import signal

from carrel.launcher.probes import files, kernel, network, processes
from carrel.launcher.probes.attempt import CONFINING, ProbeAttempt, Targets, carry_out, give_up

ATTEMPTS: tuple[ProbeAttempt, ...] = (
    *files.ATTEMPTS,
    *processes.ATTEMPTS,
    *network.ATTEMPTS,
    *kernel.ATTEMPTS,
    *kernel.PRIVILEGE_ATTEMPTS,
)


def run_probe(targets: Targets) -> list[dict[str, object]]:
    """Makes every attempt that the runtime claims to refuse.

    Each result is {"name", "refused", "detail"}: the errno's name, or what was seen.
    Changes nothing when all are refused; where one gets through, it is undone if that is
    possible, and the process should end soon after. Raises ValueError for targets that
    name no confining runtime or no network.
    """
    if targets.get("runtime") not in CONFINING or targets.get("network") not in ("none", "open"):
        raise ValueError(
            f"the probe does not know {targets.get('runtime')!r} with network "
            f"{targets.get('network')!r}"
        )
    uncovered = _names(targets.get("uncovered"))
    before = signal.signal(signal.SIGALRM, give_up)
    try:
        return [
            result
            for attempt in ATTEMPTS
            if attempt.claimed_by(targets) and attempt.name not in uncovered
            for result in carry_out(attempt, targets)
        ]
    finally:
        signal.signal(signal.SIGALRM, before)


def _names(value: object) -> frozenset[str]:
    return frozenset(map(str, value)) if isinstance(value, (list, tuple)) else frozenset()
