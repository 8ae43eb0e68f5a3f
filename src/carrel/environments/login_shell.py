"""What the login shell of the daemon's user says: its PATH, and where its tools are.

The shell runs the person's own start files, as the person, as in every terminal. Here it has no
terminal, a bounded time, and a separate pipe for the answer, so that nothing that those files print
is taken for it. The answer is kept on disk until one of the files changes.
"""

from __future__ import annotations

import contextlib
import grp
import json
import operator
import os
import pwd
import secrets
import stat
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from carrel.linux import processes
from carrel.linux.descriptors import is_readable

ANSWER_S = 5.0
"""Start files that load a version manager take up to a second; those that hang have no answer."""
END_LOOKS = 100
"""At what is left of them, 10 ms apart: a process that hangs in the kernel is not waited for."""
OLD_S = 3600.0
"""Start files read others, which nobody knows of: an older answer is asked for anew, while the old
one is used."""
MOST_BYTES = 256 * 1024
"""A PATH is much shorter. More comes of somebody who did not answer the question."""
MARK = "CARREL_LOGIN_SHELL"
"""The variable by which all that start files started is found and ended."""

_SHELLS = frozenset({"ash", "bash", "dash", "fish", "ksh", "mksh", "sh", "zsh"})
"""Those that understand the question. A `nologin` is none."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""What a login gives a shell to begin with."""
_OWN_FILES = (
    *(".profile", ".bash_profile", ".bash_login", ".bashrc", ".bash_aliases", ".kshrc"),
    *(".zshenv", ".zprofile", ".zshrc", ".zlogin", ".cargo/env"),
    *(".config/fish/config.fish", ".config/fish/conf.d", ".config/fish/fish_variables"),
)
_SYSTEM_FILES = (
    *("/etc/environment", "/etc/profile", "/etc/profile.d", "/etc/bash.bashrc", "/etc/bashrc"),
    *("/etc/zsh/zshenv", "/etc/zsh/zprofile", "/etc/zsh/zshrc", "/etc/zshenv", "/etc/zshrc"),
    "/etc/fish/config.fish",
)

Stamp = list[list[int]]


@dataclass(frozen=True)
class PersonAccount:
    """The daemon's user: an empty shell is one that cannot be asked."""

    name: str
    home: Path
    shell: str

    @staticmethod
    def own(env: Mapping[str, str]) -> PersonAccount | None:
        """None for a user without a home. The home that the environment names counts only if it
        is this user's, and nobody else can put files into it: root does not run what is somebody
        else's."""
        uid = os.geteuid()
        try:
            found = pwd.getpwuid(uid)
            name, own, shell = found.pw_name, found.pw_dir, found.pw_shell
        except KeyError:
            name, own, shell = str(uid), "", ""
        if os.path.basename(shell) not in _SHELLS or not os.access(shell, os.X_OK):
            shell = ""
        for home in (env.get("HOME", ""), own):
            with contextlib.suppress(OSError, ValueError):
                status = os.stat(home)
                if os.path.isabs(home) and status.st_uid == uid and not _others_write(status):
                    return PersonAccount(name, Path(home), shell)
        return None


class LoginShell:
    """Asks for the named variables, one question at a time."""

    def __init__(self, account: PersonAccount, names: Iterable[str], cache: Path) -> None:
        self._account = account
        self._names = ("PATH", *names)
        self._cache = cache
        self._lock = threading.Lock()
        self._stamp: Stamp | None = None
        self._said: Mapping[str, str] = {}
        self._asked_at = 0.0
        self._renewing = False
        self._read_cache()

    def variables(self) -> Mapping[str, str]:
        """Those that have a value; nothing from a shell that did not answer. Blocks only where
        there is no answer yet, or a start file has changed."""
        stamp = self._now()
        if stamp != self._stamp:
            with self._lock:
                if stamp != self._stamp:
                    self._ask(stamp)
        elif self.is_old() and not self._renewing:
            self._renewing = True
            # No daemon thread: a shell that does not answer must not outlive this process.
            threading.Thread(target=self._renew, args=(stamp,)).start()
        return self._said

    def known(self) -> Mapping[str, str]:
        """The last answer, whatever has changed since."""
        return self._said

    def is_old(self) -> bool:
        return not 0 <= time.time() - self._asked_at < OLD_S

    def files(self) -> list[str]:
        """The start files that count."""
        return [*(f"{self._account.home}/{name}" for name in _OWN_FILES), *_SYSTEM_FILES]

    def _is_of_others(self) -> bool:
        """Whether another account has written a start file, or can. The shell would run it."""
        home = str(self._account.home)
        for name in _OWN_FILES:
            parts = name.split("/")
            for number in range(1, len(parts) + 1):
                with contextlib.suppress(OSError):
                    status = os.stat(os.path.join(home, *parts[:number]))
                    if status.st_uid not in (os.geteuid(), 0) or _others_write(status):
                        return True
        return False

    def _now(self) -> Stamp:
        return [stamp_of(path) for path in self.files()]

    def _renew(self, stamp: Stamp) -> None:
        try:
            with self._lock:
                self._ask(stamp)
        finally:
            self._renewing = False

    def _ask(self, stamp: Stamp) -> None:
        said: Mapping[str, str] = {}
        with contextlib.suppress(OSError):
            may_ask = self._account.shell and not self._is_of_others()
            said = ask(self._account, self._names) if may_ask else {}
        self._said, self._stamp, self._asked_at = said, stamp, time.time()
        self._write_cache()

    def _read_cache(self) -> None:
        """Anything may be there: what is not an answer of ours to this question counts as none."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            with open(self._cache, "rb") as file:
                kept = json.loads(file.read(2 * MOST_BYTES))
            said = kept["said"]
            if kept["question"] == self._question() and all(
                isinstance(part, str) for pair in said.items() for part in pair
            ):
                self._stamp, self._said = kept["stamp"], said
                self._asked_at = float(kept["asked_at"])

    def _write_cache(self) -> None:
        """Without one, the next daemon asks again."""
        kept = {
            "question": self._question(),
            "stamp": self._stamp,
            "said": self._said,
            "asked_at": self._asked_at,
        }
        draft = self._cache.with_suffix(f".{secrets.token_hex(4)}")
        with contextlib.suppress(OSError):
            self._cache.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                draft.write_text(json.dumps(kept))
                draft.chmod(0o600)
                draft.rename(self._cache)
            finally:
                draft.unlink(missing_ok=True)

    def _question(self) -> list[str]:
        return [str(self._account.home), self._account.shell, *self._names]


def _others_write(status: os.stat_result) -> bool:
    """The group may, if it is the user's own and nobody else's: many systems give each user one."""
    if status.st_mode & stat.S_IWOTH:
        return True
    if not status.st_mode & stat.S_IWGRP:
        return False
    try:
        user, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return True
    own = group.gr_gid == user.pw_gid and group.gr_name == user.pw_name
    return not own or bool(set(group.gr_mem) - {user.pw_name})


def watched(paths: Iterable[str]) -> dict[str, list[int]]:
    """Stamps by which `is_same` tells, with as few looks as it takes, whether anything has come,
    gone or changed there. What is missing is watched by the folder in which it would appear."""
    found: dict[str, list[int]] = {}
    for path in paths:
        while path not in found:
            stamp = stamp_of(path)
            if stamp or path == "/":
                found[path] = stamp
            else:
                path = os.path.dirname(path)
    return found


def is_same(stamps: Mapping[str, list[int]]) -> bool:
    return all(map(operator.eq, map(stamp_of, stamps), stamps.values()))


def stamp_of(path: str) -> list[int]:
    """Of a file as it is now; empty where there is none."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return []
    return [found.st_ino, found.st_size, found.st_mtime_ns]


def ask(account: PersonAccount, names: tuple[str, ...]) -> dict[str, str]:
    """Runs the shell once. Blocking; nothing of it stays. Raises OSError where it cannot run."""
    end = secrets.token_hex(16)
    answers, pipe = os.pipe2(os.O_CLOEXEC)
    try:
        process = subprocess.Popen(
            [account.shell, "-l", "-i", "-c", _question(account.shell, names, end, pipe)],
            cwd=account.home,
            env=_environment(account, end),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(pipe,),
            start_new_session=True,
        )
    except OSError:
        os.close(answers)
        raise
    finally:
        os.close(pipe)
    with process:
        try:
            text = _read(answers, end.encode())
        finally:
            os.close(answers)
            processes.send_group_signal(process.pid, 9)
            _end_others(end)
    return _parsed(text, names, end)


def _question(shell: str, names: tuple[str, ...], end: str, pipe: int) -> str:
    """Only what the shell does itself: a program could not be started with an environment of
    megabytes, nor found on a broken PATH."""
    form = '"{0}=${0}"' if os.path.basename(shell) == "fish" else '"{0}=${{{0}-}}"'
    words = " ".join(form.format(name) for name in names)
    return f"printf '%s\\n' {words} {end} >/dev/fd/{pipe}"


def _environment(account: PersonAccount, end: str) -> dict[str, str]:
    """Nothing of the daemon's own: it may have been started anywhere."""
    return {
        "HOME": str(account.home),
        "USER": account.name,
        "LOGNAME": account.name,
        "SHELL": account.shell,
        "PATH": _PATH,
        "TERM": "dumb",
        "LANG": "C.UTF-8",
        MARK: end,
    }


def _read(pipe: int, end: bytes) -> bytes:
    """Until the answer ends, however long others keep the pipe open."""
    deadline = time.monotonic() + ANSWER_S
    text = b""
    while end not in text and len(text) <= MOST_BYTES:
        left = deadline - time.monotonic()
        if left <= 0 or not is_readable(pipe, left):
            break
        more = os.read(pipe, 65536)
        if not more:
            break
        text += more
    return text


def _end_others(end: str) -> None:
    """What the start files put into the background: agents, multiplexers. Until none is seen: one
    may have begun another while it was looked for, and who was killed ends when its turn comes."""
    for _ in range(END_LOOKS):
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        left = processes.having_variable(pids, MARK, end)
        if not left:
            break
        processes.kill_all(left)
        time.sleep(0.01)


def _parsed(text: bytes, names: tuple[str, ...], end: str) -> dict[str, str]:
    body, found, _ = text.partition(f"{end}\n".encode())
    if not found:
        return {}
    pairs = (line.partition("=") for line in os.fsdecode(body).split("\n"))
    return {name: value for name, _, value in pairs if name in names and value}
