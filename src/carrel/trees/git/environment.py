"""The environment and options that every git command of ours runs with.

Two kinds of command: local work on repositories that we made ourselves, which obeys
nobody's configuration; and talk with remotes, which needs the user's own (proxies,
credential helpers, `insteadOf`), but never a project's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_SSH_CONNECT_TIMEOUT_S = 15
"""A host that takes longer to accept a connection is not there."""

_KEPT = re.compile(r"GIT_(SSH|SSH_COMMAND|SSH_VARIANT|SSL_\w+|PROXY_\w+|HTTP_\w+)")
_KEPT_FOR_REMOTES = re.compile(r"GIT_CONFIG_(GLOBAL|SYSTEM|NOSYSTEM)")
"""All other GIT_* variables would point our commands at somebody else's repository."""

_URL_CREDENTIALS = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://)[^/\s'\"]*@")

_OPTIONS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "protocol.ext.allow=never",
    # Nothing may go on in the background after a command has ended.
    "gc.auto=0",
    "maintenance.auto=false",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "advice.detachedHead=false",
)
_LOCAL_OPTIONS = ("core.attributesFile=/dev/null", "core.excludesFile=/dev/null")


def redact(text: str) -> str:
    """`text` without the user names and passwords of URLs."""
    return _URL_CREDENTIALS.sub(r"\1", text)


def options(*, remote: bool) -> list[str]:
    """What stands between `git` and its command."""
    chosen = _OPTIONS if remote else _OPTIONS + _LOCAL_OPTIONS
    return [word for option in chosen for word in ("-c", option)]


def environment(extra: Mapping[str, str] | None, *, remote: bool) -> dict[str, str]:
    """The whole environment of one git command."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_")
        or _KEPT.fullmatch(name)
        or (remote and _KEPT_FOR_REMOTES.fullmatch(name))
    }
    for name in ("SSH_ASKPASS", "DISPLAY", "WAYLAND_DISPLAY", "LANGUAGE"):
        kept.pop(name, None)
    kept |= {
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "true",
        "SSH_ASKPASS_REQUIRE": "never",
        "GCM_INTERACTIVE": "never",
        "GIT_PAGER": "cat",
        "GIT_EDITOR": "true",
        "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        # Repositories that we made belong to the store's user, not to root.
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
    }
    if not remote:
        kept |= {
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CONFIG_SYSTEM": "/dev/null",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_ATTR_NOSYSTEM": "1",
        }
    return kept | dict(extra or {})


def ssh_command() -> str:
    """ssh that never asks anything and gives up on a host that does not answer."""
    return (
        f"ssh -o BatchMode=yes -o ConnectTimeout={_SSH_CONNECT_TIMEOUT_S}"
        " -o ServerAliveInterval=15 -o ServerAliveCountMax=4"
    )
