"""Tries whether an agent that speaks ACP can start: a program that is there may lack another one,
such as an adapter without the agent that it adapts."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

TRIAL_SECONDS = 20.0
"""Adapters begin within two; a machine with many agents is slow."""
FAILED_SECONDS = 30.0
"""So long a failure is believed: what is missing may be installed without a change here."""
MOST_BYTES = 1 << 20
"""Of what it answers, and of what it writes beside that."""
MOST_SAID = 8192
"""… that is no answer, where answers are."""
LONGEST_REASON = 300
AUTH_REQUIRED = -32000
_LOGIN = re.compile(r"log ?in|logged|auth|api.?key|credential|token", re.IGNORECASE)
"""Only a key or a login is missing: that is told elsewhere."""
_MISSING = re.compile(
    r"not found|cannot find|no such file|ENOENT|not installed"
    # Of a version that does not speak the protocol; what it can do instead may be listed, `login`
    # among it.
    r"|unrecognized|unexpected argument|unknown (?:sub)?command",
    re.IGNORECASE,
)
_TELLING = (
    re.compile(r"(\w*Error|\w+ error|error)( \[\w+\])?: ", re.IGNORECASE),
    re.compile(r"error\b|not found|cannot|no such file", re.IGNORECASE),
)
"""Of lines that a program wrote before it ended, those that say why, the best first: others are of
its source, or where it was."""

_INITIALIZE = {"protocolVersion": 1, "clientCapabilities": {}}

Message = Mapping[str, object]


class Trials:
    """Tries each command once for each state of its files. Blocking, any thread: who asks while
    somebody tries gets the same answer."""

    def __init__(self) -> None:
        self._locks: dict[tuple[object, ...], threading.Lock] = {}
        self._tried: dict[tuple[object, ...], tuple[str, float]] = {}

    def problem(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        folders: Mapping[str, str],
        beside: Iterable[str],
    ) -> str:
        """Why it cannot start; empty when it can. `folders` are variables that name folders of its
        own, `beside` the files and folders that it consists of."""
        key = (*argv, *env.items(), *map(_identity, beside))
        with self._locks.setdefault(key, threading.Lock()):
            problem, until = self._tried.get(key, ("", 0.0))
            if time.monotonic() >= until:
                problem = _tried(argv, env, folders)
                lasts = FAILED_SECONDS if problem else float("inf")
                self._tried[key] = problem, time.monotonic() + lasts
            return problem


def _identity(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _tried(argv: Sequence[str], env: Mapping[str, str], folders: Mapping[str, str]) -> str:
    """In an empty home, without a project and without keys."""
    with tempfile.TemporaryDirectory(prefix="carrel-trial-") as home:
        own = {name: f"{home}/{folder}" for name, folder in folders.items()}
        for folder in own.values():
            Path(folder).mkdir(parents=True, exist_ok=True)
        full = {"PATH": os.environ.get("PATH", os.defpath), "HOME": home, **env, **own}
        with tempfile.TemporaryFile() as errors:
            try:
                process = subprocess.Popen(
                    argv,
                    cwd=home,
                    env=full,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    # What it did not read would else be written again when it is closed.
                    bufsize=0,
                    start_new_session=True,
                )
            except OSError as error:
                return f"It cannot start: {error.strerror}."
            with process:
                conversation = _Conversation(process)
                try:
                    reason = conversation.problem(home)
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
            errors.seek(0)
            said = (errors.read(MOST_BYTES) + conversation.said).decode("utf-8", "replace")
    if reason is None:
        # It ended, or did not answer: what it wrote says why.
        reason = "" if _LOGIN.search(said) and not _MISSING.search(said) else _reason(said)
    return f"It cannot start: {reason[:LONGEST_REASON]}" if reason else ""


class _Conversation:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._input, self._output = process.stdin, process.stdout
        self._until = time.monotonic() + TRIAL_SECONDS
        self._buffer = b""
        self.said = b""
        """What it wrote that is no message: some say there why they end."""

    def problem(self, folder: str) -> str | None:
        """None when there was no answer. An agent that is asked for a session before it has a key
        may refuse it for that, and has started nevertheless."""
        begun = self._ask(1, "initialize", _INITIALIZE)
        if begun is None or "error" in begun:
            return None if begun is None else _told(begun)
        made = self._ask(2, "session/new", {"cwd": folder, "mcpServers": []})
        if made is None or "error" not in made:
            return None if made is None else ""
        told = _told(made)
        error = made["error"]
        asks_key = isinstance(error, dict) and error.get("code") == AUTH_REQUIRED
        return told if _MISSING.search(told) and not asks_key else ""

    def _ask(self, number: int, method: str, params: Message) -> Message | None:
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        try:
            self._input.write(json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            return None
        while (line := self._line()) is not None:
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                self.said = (self.said + line + b"\n")[-MOST_SAID:]
                continue
            if isinstance(found, dict) and found.get("id") == number and "method" not in found:
                return found
        return None

    def _line(self) -> bytes | None:
        """None when no more comes, or nothing in time."""
        while b"\n" not in self._buffer:
            left = self._until - time.monotonic()
            if left <= 0 or len(self._buffer) > MOST_BYTES:
                return None
            # Not `select.select`, which takes no number from 1024 on: a daemon has more.
            waiting = select.poll()
            waiting.register(self._output, select.POLLIN)
            if not waiting.poll(left * 1000):
                return None
            piece = os.read(self._output.fileno(), 65_536)
            if not piece:
                return None
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


def _told(answer: Message) -> str:
    """What an error of the protocol says; its details are for people, if it has some."""
    error = answer["error"]
    if not isinstance(error, dict):
        return str(error)
    data = error.get("data")
    details = data.get("details") if isinstance(data, dict) else data
    return str(details or error.get("message") or error)


def _reason(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if _TELLING[0].match(line)]
    telling += [line for line in lines if _TELLING[1].search(line)]
    return next(iter((*telling, *lines[-1:])), "it does not answer as an ACP agent does.")
