"""What a process is born with: environment, descriptors, terminal."""

from __future__ import annotations

import os

from tests.runtimes.escapes.inside import (
    USER,
    Refused,
    Targets,
    escape,
    first_success,
)

HERE = [name for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")]
"""Before anything else was opened, and without the listing's own."""


@escape("environment.variables", USER)
def variables(targets: Targets) -> str:
    found = [name for name, value in os.environ.items() if targets.marker in value]
    if found:
        return f"{found}"
    raise Refused(f"not in {len(os.environ)} variables")


@escape("environment.known_secrets")
def known_secrets(_targets: Targets) -> str:
    """Names that the environment is built without, whatever the host has."""
    words = ("TOKEN", "SECRET", "PASSWORD", "API_KEY", "SSH_", "DBUS_", "XDG_RUNTIME", "SUDO_")
    more = ("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "GIT_ASKPASS", "DISPLAY", "KUBE")
    found = [name for name in os.environ if any(word in name.upper() for word in (*words, *more))]
    if found:
        return f"{found}"
    raise Refused("none of them")


@escape("environment.descriptors", USER)
def descriptors(_targets: Targets) -> str:
    """Nothing is open but the standard ones."""

    def look(name: str) -> str:
        return os.readlink(f"/proc/self/fd/{name}")

    return first_success(look, [name for name in HERE if int(name) > 2])


@escape("environment.standard_descriptors")
def standard_descriptors(targets: Targets) -> str:
    """Not a folder, not a terminal, and nothing of the host's but where output goes."""

    def look(number: int) -> str:
        if os.isatty(number):
            return "a terminal"
        folder = os.open(f"/proc/self/fd/{number}/..", os.O_PATH)
        return f"above it: {os.listdir(folder)} {targets.data}"

    return first_success(look, (0, 1, 2))


@escape("environment.terminal_of_the_host")
def terminal_of_the_host(_targets: Targets) -> str:
    os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    return "has a controlling terminal"
