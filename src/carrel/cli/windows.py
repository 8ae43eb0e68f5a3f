"""Several agents at once in this terminal: a window of tmux for each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from carrel.cli.call import Call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

PREFIX = "C-a"
"""The other one is for the terminals themselves."""


def attach_all(call: Call, spaces: Sequence[str]) -> int:
    """The windows are ours and go when they are left; the agents go on."""
    from carrel.domain.errors import FrontendNotInstalled, MessageInvalid

    if call.flag("detach") or call.json or not sys.stdin.isatty():
        raise MessageInvalid(
            "Several spaces are attached to in a terminal only.", hint="Name one at a time."
        )
    if shutil.which("tmux") is None:
        raise FrontendNotInstalled("tmux is missing.", hint="Install it: apt install tmux")
    socket = f"carrel-attach-{os.getpid()}"
    begin = ["set", "-g", "prefix", PREFIX, ";", "bind", PREFIX, "send-prefix", ";"]
    # Else two keys that come at once count as text.
    begin += ["set", "-g", "assume-paste-time", "0", ";"]
    windows: list[str] = []
    for space in spaces:
        kind = ["new-window"] if windows else ["new-session"]
        windows += [*kind, "-n", space, *_own(call, space), ";"]
    env = {name: value for name, value in os.environ.items() if name != "TMUX"}
    words = ["tmux", "-L", socket, "-f", "/dev/null", *windows, *begin, "select-window", "-t", ":0"]
    try:
        return subprocess.call(words, env=env)
    finally:
        subprocess.run(
            ["tmux", "-L", socket, "kill-server"], env=env, capture_output=True, check=False
        )


def _own(call: Call, space: str) -> list[str]:
    """This program, for one space, with what was said to it."""
    words = [sys.executable, "-m", "carrel.cli.main", "attach"]
    for name in ("data", "url"):
        if value := call.text(name):
            words += [f"--{name}", value]
    if call.flag("read_only"):
        words.append("--read-only")
    for name in ("agent", "message", "model", "permission"):
        if value := call.text(name):
            words += [f"--{name}", value]
    return [*words, "--", space]
