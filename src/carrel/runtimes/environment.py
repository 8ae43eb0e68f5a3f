"""The environment of a command, built up from nothing."""

from __future__ import annotations

from collections.abc import Mapping

from carrel.domain.hub import HUB_SOCKET

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def base_environment(sandbox_id: str, home: str, tmp: str, hub: str) -> dict[str, str]:
    """`hub` is the folder with the hub's socket."""
    return {
        "PATH": PATH,
        "HOME": home,
        "USER": "user",
        "LOGNAME": "user",
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        "TMPDIR": tmp,
        "CARREL_SPACE": sandbox_id,
        "CARREL_HUB": f"{hub}/{HUB_SOCKET}",
    }


def environment(
    base: Mapping[str, str], *more: Mapping[str, str], terminal: bool = False
) -> dict[str, str]:
    """Later ones win."""
    result = dict(base)
    if terminal:
        result["TERM"] = "xterm-256color"
    for delta in more:
        result.update(delta)
    return result
