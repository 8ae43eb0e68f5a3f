"""Runs git: bounded in time and memory, never asking, never obeying a project's settings.

Every command leads a process group of its own, which is killed whole when its time is
up or the caller is interrupted: git's helpers (ssh, remote-https, index-pack) go with it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from carrel.domain.errors import CarrelError, GitFailed, GitTimeout, InsufficientDisk
from carrel.trees.git.environment import environment, options, redact, ssh_command
from carrel.trees.git.pump import OutputTooLarge, Pump, TimeIsUp

OnLine = Callable[[str], None]

_KILL_WAIT_S = 10.0
"""How long a killed group may take to vanish; only a hung disk keeps it longer."""
_CONFIG_TIMEOUT_S = 10.0
"""Reading the user's configuration touches a few small files."""
_SHOWN_LINES = 4
_PROGRESS_LINE = re.compile(r"\d+% \(|^remote: (Counting|Compressing|Enumerating|Total)")
_NO_ROOM = "No space left on device"


def run_git(
    args: Sequence[str],
    *,
    cwd: Path | None = None,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    input: bytes | None = None,
) -> bytes:
    """Local work on a repository of ours; gives what git printed.

    No configuration but the repository's own is read, so use it only on repositories
    that we made. `env` is added last and wins. Raises `GitFailed` with git's last
    words, `GitTimeout`, or `InsufficientDisk`.
    """
    argv = ["git", *options(remote=False), *args]
    whole = environment(env, remote=False)
    return _run(argv, whole, cwd, timeout_s, Pump(input or b"", _ignore))


def run_git_with_progress(
    args: Sequence[str], *, cwd: Path | None = None, timeout_s: float, on_line: OnLine
) -> bytes:
    """As `run_git`, telling `on_line` each line (or progress step) of git's stderr."""
    argv = ["git", *options(remote=False), *args]
    return _run(argv, environment(None, remote=False), cwd, timeout_s, Pump(b"", on_line))


def run_git_remote(
    args: Sequence[str],
    *,
    cwd: Path | None = None,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    on_line: OnLine | None = None,
) -> bytes:
    """Talks with a remote: the user's own configuration counts, a project's never does.

    Raises as `run_git` does. Give `--progress` to have steps on `on_line`.
    """
    # A remote can hang for ever. Should we be killed, nobody else would end the command.
    watchdog = ["timeout", "--signal=KILL", f"{timeout_s + _KILL_WAIT_S:.3f}"]
    argv = ["git", *options(remote=True), *args]
    if shutil.which(watchdog[0]):
        argv = watchdog + argv
    whole = environment(env, remote=True)
    if "GIT_SSH_COMMAND" not in whole and "GIT_SSH" not in whole and not _own_ssh(whole):
        whole["GIT_SSH_COMMAND"] = ssh_command()
    return _run(argv, whole, cwd, timeout_s, Pump(b"", on_line or _ignore))


def _own_ssh(env: Mapping[str, str]) -> bool:
    """Whether the user's configuration names an ssh of their own, which then is used."""
    try:
        return bool(
            _run(
                ["git", "config", "--get", "core.sshCommand"],
                {**env, "GIT_DIR": "/dev/null"},
                Path("/"),
                _CONFIG_TIMEOUT_S,
                Pump(b"", _ignore),
            )
        )
    except CarrelError:
        return False


def _ignore(_line: str) -> None:
    pass


def _run(
    argv: list[str], env: Mapping[str, str], cwd: Path | None, timeout_s: float, pump: Pump
) -> bytes:
    deadline = time.monotonic() + timeout_s
    name = command_name(argv)
    try:
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=env,
            stdin=subprocess.PIPE if pump.has_input else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            umask=0o022,
        )
    except FileNotFoundError as error:
        if cwd is not None and not cwd.is_dir():
            raise GitFailed(f"git {name} cannot run in {cwd}: there is no such folder.") from error
        raise GitFailed("git is not installed.", hint="Install the package `git`.") from error
    try:
        pump.run(process, deadline)
    except TimeIsUp as error:
        kill(process)
        raise GitTimeout(
            f"git {name} did not finish within {timeout_s:g} seconds.",
            hint="Check that the repository answers, or allow more time.",
        ) from error
    except OutputTooLarge as error:
        kill(process)
        raise GitFailed(f"git {name} printed more than can be held.") from error
    except BaseException:
        kill(process)
        raise
    finally:
        close_streams(process)
    if process.returncode != 0:
        raise failure(name, process.returncode, pump.errors)
    return pump.output


def command_name(argv: Sequence[str]) -> str:
    """The command's own name: the first word after git that is no option nor its value."""
    words = iter(argv[argv.index("git") + 1 :])
    for word in words:
        if word in ("-c", "-C"):
            next(words, None)
        elif not word.startswith("-"):
            return word
    return "command"


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends the whole group. Its leader is not reaped yet, so the number is still its own."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_WAIT_S)


def close_streams(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def failure(name: str, code: int, errors: bytes) -> CarrelError:
    text = redact(errors.decode(errors="replace"))
    lines = [line.strip() for line in re.split(r"[\r\n]+", text)]
    said = [line for line in lines if line and not _PROGRESS_LINE.search(line)]
    words = " / ".join(said[-_SHOWN_LINES:]) or f"it ended with code {code} and said nothing"
    if _NO_ROOM in text:
        return InsufficientDisk(
            f"git {name} ran out of disk space: {words}.", hint="Free some space and try again."
        )
    return GitFailed(f"git {name} failed: {words}.", hint=_hint(text), exit_code=code)


def _hint(text: str) -> str:
    if "Host key verification failed" in text:
        return "Connect to the host once with ssh by hand, so that its key is known."
    if "Authentication failed" in text or "Permission denied (publickey" in text:
        return "Check the credentials: git must be able to fetch without asking."
    if "Could not resolve host" in text:
        return "Check the address and the network."
    return ""
