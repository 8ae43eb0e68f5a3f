"""A tmux server of the space, for one pane: the agent's.

It runs in the foreground and ends with the supervisor. Its socket is named from within its
folder, for a path to a socket is short.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from carrel.agents.processes import ProcessTree
from carrel.agents.terminals.hook import own
from carrel.domain.errors import AgentCrashed, FrontendNotInstalled

PROGRAM = "tmux"
SOCKET, CONFIG = "tmux.sock", "tmux.conf"
COMMAND, ENDED_WITH = "command.json", "ended"
SESSION = "agent"
ROWS, COLS = 50, 160
"""Until somebody attaches."""
NEW = ("new-session", "-d", "-s", SESSION, "-x", str(COLS), "-y", str(ROWS))
HISTORY = 50_000
"""Lines to scroll back."""
ANSWER_S = 10.0
"""For tmux to do one thing, on a busy machine."""
UP_S = 10.0
LOOK_S = 0.02
"""Between two looks at what tmux tells nobody: that it is up, that it knows of an end."""
END_S = 3.0
"""For an agent to go once it was asked to, before it is killed."""
NOTICED_S = 2.0
"""For tmux to show all that was written, and to know that nobody writes more."""
STILL_S, GLANCE_S = 1.5, 0.25
"""A program that comes up paints more than once."""
LAST_LINES = 20

ENDED = "(the agent has ended)"
"""On the screen, until it is started again."""
SETTINGS = f"""\
set -s exit-empty off
set -s escape-time 20
set -s set-clipboard off
set -g assume-paste-time 0
set -g default-terminal tmux-256color
set -g update-environment ""
set -g history-limit {HISTORY}
set -g remain-on-exit on
set -g remain-on-exit-format "{ENDED}"
set -g window-size latest
set -g status-left " #S "
set -g status-right " Ctrl-b d detaches "
"""


@dataclass(frozen=True)
class PaneEnd:
    """How a program in the pane ended; neither is known when it went with its terminal."""

    code: int | None
    signal: int | None
    lines: tuple[str, ...] = ()


class Tmux:
    """`async with`: the server and all that runs in it are gone afterwards."""

    def __init__(self, folder: Path, workspace: str) -> None:
        self._folder = folder
        self._workspace = workspace
        self._server: subprocess.Popen[bytes] | None = None
        self._pid = 0

    async def __aenter__(self) -> Tmux:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.end()
        await self._part()
        self._close()

    async def _part(self) -> None:
        """Who is attached leaves as one does, and not with an error."""
        if self._server is None or not await self.attached():
            return
        await self._ask("kill-session", "-t", SESSION)
        until = asyncio.get_running_loop().time() + NOTICED_S
        while (await self._ask("list-clients"))[1].strip():
            if asyncio.get_running_loop().time() > until:
                return
            await asyncio.sleep(LOOK_S)

    # The program in the pane

    async def show(self, argv: tuple[str, ...]) -> None:
        """Starts a program in the pane, where another has ended or none was."""
        await self._up()
        (self._folder / COMMAND).write_text(json.dumps(argv))
        there, _ = await self._ask("has-session", "-t", SESSION)
        begin = ("respawn-pane", "-t", SESSION) if there else NEW
        (self._folder / ENDED_WITH).unlink(missing_ok=True)
        pane = (*own("pane.py"), *(str(self._folder / name) for name in (COMMAND, ENDED_WITH)))
        await self._do(*begin, "-c", self._workspace, "--", *pane)
        self._pid = int(await self._do("display-message", "-p", "-t", SESSION, "#{pane_pid}"))

    async def ended(self) -> PaneEnd:
        """Waits for the program's end. What it leaves in its terminal goes with it."""
        tree = ProcessTree(self._pid)
        await _gone(self._pid)
        tree.end()
        until = asyncio.get_running_loop().time() + NOTICED_S
        while asyncio.get_running_loop().time() < until:
            alive, dead = await self._ask("display-message", "-p", "-t", SESSION, "#{pane_dead}")
            if not alive:
                self._close()
                break
            if dead.strip() == "1":
                break
            await asyncio.sleep(LOOK_S)
        code = self._code()
        killed = code is not None and code < 0
        lines = await self.lines() if self._server is not None else ()
        return PaneEnd(None if killed else code, -code if code and killed else None, lines)

    def _code(self) -> int | None:
        """Below zero: the number of a signal. None: nobody wrote it down."""
        try:
            return int((self._folder / ENDED_WITH).read_text())
        except (OSError, ValueError):
            return None

    async def end(self) -> None:
        """Asks the program to go, and then makes it; does nothing when none runs."""
        if self._pid == 0 or self._server is None:
            return
        tree = ProcessTree(self._pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(_gone(self._pid), END_S)
        tree.end()
        self._pid = 0

    async def still(self) -> None:
        """Waits until something stands on the screen and stays as it is."""
        before, since = "", 0.0
        while True:
            _, said = await self._ask("capture-pane", "-p", "-t", SESSION)
            now = asyncio.get_running_loop().time()
            if said.strip() != before:
                before, since = said.strip(), now
            elif before and now - since >= STILL_S:
                return
            await asyncio.sleep(GLANCE_S)

    # What people do

    async def type(self, text: str) -> None:
        """As pasted, and sent off."""
        await self._do("load-buffer", "-b", "typed", "-", given=text.encode())
        await self._do("paste-buffer", "-p", "-d", "-b", "typed", "-t", SESSION)
        await self._do("send-keys", "-t", SESSION, "Enter")

    async def press(self, key: str) -> None:
        await self._do("send-keys", "-t", SESSION, key)

    async def attached(self) -> int:
        alive, said = await self._ask("display-message", "-p", "-t", SESSION, "#{session_attached}")
        return int(said) if alive and said.strip().isdigit() else 0

    async def lines(self) -> tuple[str, ...]:
        """The last that was written; tmux scrolls for its own word about the end."""
        back = ("-S", f"-{LAST_LINES}")
        alive, said = await self._ask("capture-pane", "-p", *back, "-t", SESSION)
        found = [line.rstrip() for line in said.splitlines()] if alive else []
        return tuple(line for line in found if line and line.strip() != ENDED)[-LAST_LINES:]

    # The server

    async def _up(self) -> None:
        if self._server is not None and self._server.poll() is None:
            return
        self._close()
        program = shutil.which(PROGRAM)
        if program is None:
            raise FrontendNotInstalled("tmux is missing.", hint="Install it: apt install tmux")
        (self._folder / CONFIG).write_text(SETTINGS)
        (self._folder / SOCKET).unlink(missing_ok=True)
        # If we are killed nobody would be left to end it.
        holder = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
        self._server = subprocess.Popen(
            (*holder, program, "-u", "-S", SOCKET, "-f", CONFIG, "-D"),
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        until = asyncio.get_running_loop().time() + UP_S
        # It answers before it has read its settings.
        while (await self._ask("show-options", "-gwv", "remain-on-exit"))[1].strip() != "on":
            if asyncio.get_running_loop().time() > until or self._server.poll() is not None:
                raise AgentCrashed("tmux did not start.", hint="Run: carrel exec SPACE -- tmux -V")
            await asyncio.sleep(LOOK_S)

    def _close(self) -> None:
        if self._server is None:
            return
        ProcessTree(self._server.pid).end()
        self._server.wait()
        self._server = None
        (self._folder / SOCKET).unlink(missing_ok=True)

    async def _do(self, *words: str, given: bytes = b"") -> str:
        done, said = await self._ask(*words, given=given)
        if not done:
            raise AgentCrashed(f"tmux {words[0]}: {said.strip()[:500] or 'it does not answer'}")
        return said.strip()

    async def _ask(self, *words: str, given: bytes = b"") -> tuple[bool, str]:
        """Whether it did that, and what it said."""
        return await asyncio.to_thread(self._run, words, given)

    def _run(self, words: tuple[str, ...], given: bytes) -> tuple[bool, str]:
        try:
            done = subprocess.run(
                (PROGRAM, "-N", "-u", "-S", SOCKET, *words),
                cwd=self._folder,
                input=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=ANSWER_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False, "it does not answer"
        return done.returncode == 0, done.stdout.decode("utf-8", "replace")


async def _gone(pid: int) -> None:
    loop = asyncio.get_running_loop()
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = loop.create_future()
    loop.add_reader(descriptor, ended.set_result, None)
    try:
        await ended
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
