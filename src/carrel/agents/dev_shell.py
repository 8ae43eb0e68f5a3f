"""What an agent finds as its shell, and as git, in a space with an image: the command runs where
the image is.

The program hands its own standard streams to the daemon, which gives them to the command, so that
no byte passes through here. It sends on the signals that it gets, and ends as the command did. If
the daemon dies, the command goes on, and the next daemon tells how it ends.

Run by its path in the sandbox, with nothing but the standard library:
`dev_shell.py SOCKET SHELL [ARGUMENT…]`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import struct
import sys
import termios
import time

AGAIN_S, LONGEST_S = 0.2, 60.0
"""A daemon that is started again is there in a second."""
SENT_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
PASSED = re.compile(
    "TERM|COLORTERM|NO_COLOR|FORCE_COLOR|CLICOLOR|COLUMNS|LINES|LANG|LC_[A-Z]+|TZ|CI|DEBIAN_FRONTEND"
    "|CLAUDECODE|GIT_(AUTHOR|COMMITTER)_(NAME|EMAIL|DATE)|GIT_(EDITOR|PAGER|TERMINAL_PROMPT)"
    "|PAGER|EDITOR|VISUAL"
)
"""Variables that the command gets too. The agent's keys are in others, and stay with it."""
CANNOT_RUN = 126
GIT = "git"
GIT_PLACES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR")
PASSED_TO_GIT = frozenset((*GIT_PLACES, "GIT_OPTIONAL_LOCKS", "GIT_LITERAL_PATHSPECS"))
STRANGE = "GIT_TEST_ASSUME_DIFFERENT_OWNER"
"""Has every git of the agent's refuse repositories that are not named as safe, and so the tree."""
TREE = "/workspace"
TAKEN = "CARREL_SHELL_TERMINAL"
"""Set where nobody else needs the terminal: a person came in by SSH."""


class DevShell:
    def __init__(self, path: str, argv: list[str]) -> None:
        self._path = path
        self._argv = argv
        self._run = ""
        self._connection: socket.socket | None = None
        self._person = bool(os.environ.get(TAKEN))
        self._terminal = self._person and os.isatty(0)
        self._wanted: list[int] = []
        """Signals that came while no daemon was there."""

    def main(self) -> int:
        for number in SENT_ON:
            signal.signal(number, lambda number, _frame: self._signal(number))
        if self._terminal:
            self._give_up_terminal()
        until = time.monotonic() + LONGEST_S
        while True:
            try:
                answer = self._ask()
            except OSError as error:
                # Whether it has begun is not known, unless its number is: it is not begun twice.
                if not self._run and self._connection is not None:
                    return self._fail(f"the connection was lost ({error.strerror})")
                if time.monotonic() > until:
                    return self._fail("the daemon is not there")
                self._connection = None
                time.sleep(AGAIN_S)
                continue
            if answer is not None:
                return self._end(answer)
            until = time.monotonic() + LONGEST_S

    def _ask(self) -> dict[str, object] | None:
        """What the daemon says last; None when it went away, and the command has begun."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with connection:
            connection.connect(self._path)
            self._connection = connection
            asked: dict[str, object] = {"attach": self._run}
            if not self._run:
                env = {name: one for name, one in os.environ.items() if self._passes(name)}
                asked = {"argv": self._argv, "env": env, "cwd": os.getcwd()}
                asked |= {"terminal": self._terminal, "person": self._person}
            body = json.dumps(asked).encode()
            streams = [] if self._run else [0, 1, 2]
            socket.send_fds(connection, [struct.pack("!I", len(body))], streams)
            connection.sendall(body)
            for number in self._wanted:
                self._send(number)
            self._wanted.clear()
            with connection.makefile("rb") as lines:
                for line in lines:
                    said: dict[str, object] = json.loads(line)
                    if "run" not in said:
                        return said
                    self._run = str(said["run"])
            if not self._run:
                raise OSError(0, "it said nothing")
            self._connection = None
            return None

    def _passes(self, name: str) -> bool:
        git = self._argv[:1] == [GIT] and name in PASSED_TO_GIT
        return git or PASSED.fullmatch(name) is not None

    @staticmethod
    def _give_up_terminal() -> None:
        """A shell there can have it as its own then, with jobs and Ctrl-C. Whoever was in front of
        it, and that is us, is told that it hung up."""
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            fcntl.ioctl(0, termios.TIOCNOTTY)
        except OSError:
            # It is not ours to give.
            return
        finally:
            signal.signal(signal.SIGHUP, before)

    def _signal(self, number: int) -> None:
        if self._connection is None:
            self._wanted.append(number)
        else:
            self._send(number)

    def _send(self, number: int) -> None:
        try:
            assert self._connection is not None
            self._connection.sendall(json.dumps({"signal": number}).encode() + b"\n")
        except OSError:
            self._wanted.append(number)

    def _end(self, said: dict[str, object]) -> int:
        if "message" in said:
            return self._fail(str(said["message"]))
        number = said.get("signal")
        if isinstance(number, int):
            signal.signal(number, signal.SIG_DFL) if number not in (9, 19) else None
            os.kill(os.getpid(), number)
            return 128 + number
        code = said.get("code")
        return code if isinstance(code, int) else self._fail("nobody knows how it ended")

    @staticmethod
    def _fail(why: str) -> int:
        sys.stderr.write(f"carrel: {why}\n")
        return CANNOT_RUN


def is_own(words: list[str]) -> bool:
    """Whether git has to do with nothing but the agent's home, which the image cannot write: then
    it runs here."""
    home = os.path.realpath(os.environ.get("HOME") or "/nonexistent")

    def below(path: str) -> bool:
        real = os.path.realpath(path)
        return real.startswith(f"{home}/") and not _is_of_the_tree(real, home)

    places = [os.environ[name] for name in GIT_PLACES if name in os.environ]
    named = [part for word in words for part in (word, word.partition("=")[2]) if part]
    places += [part for part in named if os.path.lexists(part) or part.startswith("file:")]
    return below(f"{os.getcwd()}/.git") and all(map(below, places))


def _is_of_the_tree(path: str, home: str) -> bool:
    """It is also shown where the project is on the host, and that can be below this home."""
    while len(path) > len(home):
        with contextlib.suppress(OSError):
            if os.path.samefile(path, TREE):
                return True
        path = os.path.dirname(path)
    return False


def run_own(words: list[str], without: str) -> int:
    """As the next one on the PATH."""
    folders = os.environ.get("PATH", os.defpath).split(":")
    os.environ.pop(STRANGE, None)
    os.environ["PATH"] = ":".join(one for one in folders if os.path.realpath(one) != without)
    try:
        os.execvp(GIT, [GIT, *words])
    except OSError as error:
        sys.stderr.write(f"carrel: git: {error.strerror}\n")
        return CANNOT_RUN


if __name__ == "__main__":
    if sys.argv[2] == GIT and is_own(sys.argv[3:]):
        sys.exit(run_own(sys.argv[3:], os.path.realpath(f"{os.path.dirname(sys.argv[1])}/dev")))
    sys.exit(DevShell(sys.argv[1], sys.argv[2:]).main())
