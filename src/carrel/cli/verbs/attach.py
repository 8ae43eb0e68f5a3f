"""carrel attach: the agent of a space in this terminal, or those of several in windows."""

from __future__ import annotations

import os
import sys

from carrel.cli.call import VerbCall, invalid
from carrel.cli.spec import SOME_SPACES, Option, Verb
from carrel.cli.verbs import turns
from carrel.cli.verbs.exec import follow, own_errors, with_terminal
from carrel.client.exchange import RunExchange
from carrel.domain.agents import PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

WINDOWS = ("C-a", "C-o")
"""The key of our windows, and the one where that is the key of the agents' own terminals."""


@Verb(
    SOME_SPACES,
    turns.AGENT,
    Option("-m, --message TEXT", "Send it this message first."),
    Option("-r, --read-only", "Only watch; what is typed is not sent."),
    Option("-d, --detach", "Start it, and do not attach."),
    Option("--prefix KEY", "Use this key instead of Ctrl-b: C-a, M-x, C-Space."),
    *turns.CONTINUE_OPTIONS,
    *turns.START_OPTIONS,
)
def attach(call: VerbCall) -> int:
    """Attach to the agent of a space; start it when none runs.

    Ctrl-b d detaches, and the agent goes on; several people may be attached at once. With
    several spaces each has a window here: Ctrl-a n shows the next, Ctrl-a d leaves all (Ctrl-o
    where Ctrl-a is the --prefix). The setting attach_prefix is a prefix for always.
    """
    spaces = call.texts("space")
    if len(spaces) > 1:
        return _attach_all(call, spaces)
    with own_errors():
        return _attach(call, spaces[0])


def _attach(call: VerbCall, space: str) -> int:
    found = _running(call, space) or _start(call, space)
    if call.flag("detach"):
        call.answer(found["turn"], lambda turn: turn["id"])
        return 0
    command = with_terminal({"argv": found["argv"], "cwd": found["cwd"], "hangup": True})
    return follow(call, RunExchange.starting(space, command), command)


def _running(call: VerbCall, space: str) -> dict[str, Any] | None:
    """The terminal of the agent that runs; None when there is none."""
    from carrel.domain.errors import StateConflict

    try:
        return _terminal(call, space)
    except StateConflict:
        return None


def _start(call: VerbCall, space: str) -> dict[str, Any]:
    wanted = {**turns.content(call, call.text("message")), "terminal": True}
    wanted.update(turns.continuation(call, space))
    wanted.update(turns.upload_files(call, space))
    turns.begin_turn(call, space, wanted)
    return _terminal(call, space)


def _terminal(call: VerbCall, space: str) -> dict[str, Any]:
    query = [("read_only", "true")] if call.flag("read_only") else []
    if (prefix := _prefix(call)) != PREFIX:
        query.append(("prefix", prefix))
    found: dict[str, Any] = call.ask("turns.terminal", space, query=query)
    return found


def _prefix(call: VerbCall) -> str:
    """Raises `SettingsInvalid`."""
    from carrel.config import check_prefix, load_settings

    if key := call.text("prefix"):
        check_prefix(key)
        return key
    return load_settings().attach_prefix


def _attach_all(call: VerbCall, spaces: Sequence[str]) -> int:
    """Opens a window of tmux for each. The windows go when they are left; the agents go on."""
    import shutil
    import signal
    import subprocess
    import tempfile

    from carrel.domain.errors import FrontendNotInstalled

    if call.flag("detach") or call.json or not sys.stdin.isatty():
        raise invalid(
            "Attaching to several spaces needs a terminal.",
            hint="Run it in a terminal, or name one space.",
        )
    if shutil.which("tmux") is None:
        raise FrontendNotInstalled("tmux is missing.", hint="Install it: apt install tmux")
    prefix = _prefix(call)
    key = next(one for one in WINDOWS if one != prefix)
    begin = ["set", "-g", "prefix", key, ";", "bind", key, "send-prefix", ";"]
    hint = f" {key.replace('C-', 'Ctrl-')} n: next, d: leave all "
    begin += ["set", "-g", "status-right", hint, ";"]
    # Also where somebody has killed this program.
    begin += ["set-hook", "-g", "client-detached", "kill-server", ";"]
    # Else two keys that come at once count as text.
    begin += ["set", "-g", "assume-paste-time", "0", ";"]
    windows: list[str] = []
    for space in spaces:
        kind = ["new-window"] if windows else ["new-session"]
        windows += [*kind, "-n", space, *_command(call, space), ";"]
    env = {name: value for name, value in os.environ.items() if name != "TMUX"}
    with tempfile.TemporaryDirectory(prefix="carrel-attach-", ignore_cleanup_errors=True) as folder:
        tmux = ["tmux", "-S", f"{folder}/socket", "-f", "/dev/null"]
        # Who closes the terminal ends tmux, and we have something to remove.
        signal.signal(signal.SIGHUP, lambda _number, _frame: None)
        try:
            words = [*tmux, *windows, *begin, "select-window", "-t", ":0"]
            return subprocess.call(words, env=env)
        finally:
            subprocess.run([*tmux, "kill-server"], env=env, capture_output=True, check=False)


def _command(call: VerbCall, space: str) -> list[str]:
    """Attaches to one space by this program, with the options that were given."""
    from carrel.linux.processes import python

    words = [*python("carrel.cli.main"), "attach"]
    for name in ("data", "url"):
        if value := call.text(name):
            words += [f"--{name}", value]
    if call.flag("read_only"):
        words.append("--read-only")
    for name in ("agent", "message", "model", "permission", "prefix"):
        if value := call.text(name):
            words += [f"--{name}", value]
    # tmux ends its command at a word that ends so.
    return [f"{word[:-1]}\\;" if word.endswith(";") else word for word in [*words, "--", space]]
