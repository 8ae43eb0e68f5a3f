"""Runs git: bounded in time and memory, never asking, never obeying a project's settings.

Two kinds of command: local work on repositories that we made ourselves, which obeys
nobody's configuration; and talk with remotes, which needs the user's own (proxies,
credential helpers, `insteadOf`), but never a project's.

Every command leads a process group of its own, which is killed whole when its time is
up or the caller is interrupted: git's helpers (ssh, remote-https, index-pack) go with it.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import selectors
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from carrel.domain.errors import CarrelError, GitFailed, GitTimeout, InsufficientDisk
from carrel.domain.projects import OnProgress, Progress
from carrel.linux.descriptors import Descriptor, is_readable
from carrel.linux.reserve import free_room, is_short

_SSH_CONNECT_TIMEOUT_S = 15
"""A host that takes longer to accept a connection is not there."""

_KEPT = re.compile(r"GIT_(SSH|SSH_COMMAND|SSH_VARIANT|SSL_\w+|PROXY_\w+|HTTP_\w+)")
_KEPT_FOR_REMOTES = re.compile(r"GIT_CONFIG_(GLOBAL|SYSTEM|NOSYSTEM)")
"""All other GIT_* variables would point our commands at somebody else's repository."""

_KEPT_FOR_OTHERS = (
    "PATH",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "GIT_SSL_CAINFO",
    "GIT_SSL_CAPATH",
)
"""Where programs are, and whom they believe."""


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


def bare_environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    """Of a command that talks with a remote for somebody else: no configuration, keys,
    credentials or proxies of the daemon's user, and no transport but these."""
    kept = {name: os.environ[name] for name in _KEPT_FOR_OTHERS if name in os.environ}
    found = {
        name: value
        for name, value in environment(None, remote=False).items()
        if name.startswith("GIT_") and not _KEPT.fullmatch(name)
    }
    own = {
        "LC_ALL": "C",
        "HOME": "/nonexistent",
        "XDG_CONFIG_HOME": "/nonexistent",
        "GIT_ALLOW_PROTOCOL": "file:http:https",
        "GIT_SSH_COMMAND": "false",
    }
    return {**kept, **found, **own, **(extra or {})}


def ssh_command() -> str:
    """ssh that never asks anything and gives up on a host that does not answer."""
    return (
        f"ssh -o BatchMode=yes -o ConnectTimeout={_SSH_CONNECT_TIMEOUT_S}"
        " -o ServerAliveInterval=15 -o ServerAliveCountMax=4"
    )


# Moving bytes to and from one process, within a deadline and bounded memory

_MAX_OUTPUT = 512 << 20
"""Names of some millions of files; more means that something is wrong."""
MOST_MEMORY = 2 << 30
"""Of one git that reads files of spaces: two versions of a file of 512 MiB, and as much again."""
_ERROR_TAIL = 16 << 10
_CHUNK = 1 << 16
_TICK_S = 0.5
"""How soon the end of a process is seen whose pipes a background helper still holds."""
_LINE_END = re.compile(rb"[\r\n]+")


class TimeIsUp(Exception):
    """The deadline passed."""


class OutputTooLarge(Exception):
    """The process printed more than is held in memory."""


class Pump:
    """One use: `run` feeds the input and gathers output; `errors` is the end of stderr."""

    def __init__(self, data: bytes, on_line: Callable[[str], None]) -> None:
        self._input = memoryview(data)
        self._on_line = on_line
        self._output = bytearray()
        self._errors = bytearray()
        self._line = bytearray()

    @property
    def has_input(self) -> bool:
        return len(self._input) > 0

    @property
    def output(self) -> bytes:
        return bytes(self._output)

    @property
    def errors(self) -> bytes:
        return bytes(self._errors)

    def run(self, process: subprocess.Popen[bytes], deadline: float) -> None:
        """Until the process has ended. Raises `TimeIsUp` or `OutputTooLarge`."""
        with selectors.DefaultSelector() as selector:
            self._register(selector, process)
            while selector.get_map():
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeIsUp
                ready = selector.select(min(left, _TICK_S))
                for key, _events in ready:
                    self._serve(selector, key)
                if not ready and process.poll() is not None:
                    break
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            raise TimeIsUp from error
        self._end_of_errors()

    def _register(self, selector: selectors.BaseSelector, process: subprocess.Popen[bytes]) -> None:
        streams: tuple[tuple[IO[bytes] | None, int, Callable[[IO[bytes]], bool]], ...] = (
            (process.stdin, selectors.EVENT_WRITE, self._feed),
            (process.stdout, selectors.EVENT_READ, self._take_output),
            (process.stderr, selectors.EVENT_READ, self._take_errors),
        )
        for stream, events, action in streams:
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, events, action)

    def _serve(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        stream: IO[bytes] = key.fileobj  # type: ignore[assignment]
        if not key.data(stream):
            selector.unregister(stream)
            stream.close()

    def _feed(self, stream: IO[bytes]) -> bool:
        try:
            written = os.write(stream.fileno(), self._input[:_CHUNK])
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False
        self._input = self._input[written:]
        return len(self._input) > 0

    def _take_output(self, stream: IO[bytes]) -> bool:
        data = os.read(stream.fileno(), _CHUNK)
        self._output += data
        if len(self._output) > _MAX_OUTPUT:
            raise OutputTooLarge
        return bool(data)

    def _take_errors(self, stream: IO[bytes]) -> bool:
        data = os.read(stream.fileno(), _CHUNK)
        self._errors += data
        del self._errors[:-_ERROR_TAIL]
        self._line += data
        *lines, rest = _LINE_END.split(bytes(self._line))
        self._line = bytearray(rest[-_ERROR_TAIL:])
        for line in lines:
            self._say(line)
        return bool(data)

    def _end_of_errors(self) -> None:
        self._say(bytes(self._line))
        self._line.clear()

    def _say(self, line: bytes) -> None:
        if line:
            self._on_line(line.decode(errors="replace"))


# Commands whose input and output are held in memory

OnLine = Callable[[str], None]

_KILL_WAIT_S = 10.0
"""How long a killed group may take to vanish; only a hung disk keeps it longer."""
_CONFIG_TIMEOUT_S = 10.0
"""Reading the user's configuration touches a few small files."""
_SHOWN_LINES = 4
_PROGRESS_LINE = re.compile(r"\d+% \(|^remote: (Counting|Compressing|Enumerating|Total)")
_NO_MEMORY = "Out of memory"
_NO_ROOM = re.compile(
    r"[^\r\n]*(?:No space left on device|Out of diskspace|Disk quota exceeded)[^\r\n]*"
)
"""Git has words of its own, too."""
_NOT_WRITTEN = re.compile(r"(?:failed|unable|could not|cannot) .*(?:writ|creat|set)", re.IGNORECASE)
"""It does not always say why."""


def _ignore(_line: str) -> None:
    pass


def run_git(
    args: Sequence[str],
    *,
    cwd: Path | None = None,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    input: bytes = b"",
    on_line: OnLine = _ignore,
    well: tuple[int, ...] = (0,),
    bounded: bool = False,
) -> bytes:
    """Local work on a repository of ours; gives what git printed. `bounded`: see `bound_memory`.

    No configuration but the repository's own is read, so use it only on repositories
    that we made. `env` is added last and wins. `on_line` is told each line (or progress
    step) of git's stderr. Raises `GitFailed` with git's last words if it ends with another code
    than those of `well`, `GitTimeout`, or `InsufficientDisk`.
    """
    argv = ["git", *options(remote=False), *args]
    pump = Pump(input, on_line)
    return _run(argv, environment(env, remote=False), cwd, timeout_s, pump, well, bounded)


def run_git_remote(
    args: Sequence[str],
    *,
    cwd: Path | None = None,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    on_line: OnLine = _ignore,
    route: Sequence[str] | None = None,
) -> bytes:
    """Talks with a remote: the user's own configuration counts, a project's never does.
    With a `route` (see `remote.route_to`), nothing of the user's counts.

    Raises as `run_git` does. Give `--progress` to have steps on `on_line`.
    """
    # A remote can hang for ever. Should we be killed, nobody else would end the command.
    watchdog = ["timeout", "--signal=KILL", f"{timeout_s + _KILL_WAIT_S:.3f}"]
    argv = ["git", *options(remote=True), *(route or ()), *args]
    if shutil.which(watchdog[0]):
        argv = watchdog + argv
    if route is not None:
        return _run(argv, bare_environment(env), cwd, timeout_s, Pump(b"", on_line))
    whole = environment(env, remote=True)
    if "GIT_SSH_COMMAND" not in whole and "GIT_SSH" not in whole and not _own_ssh(whole):
        whole["GIT_SSH_COMMAND"] = ssh_command()
    return _run(argv, whole, cwd, timeout_s, Pump(b"", on_line))


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


def _run(
    argv: list[str],
    env: Mapping[str, str],
    cwd: Path | None,
    timeout_s: float,
    pump: Pump,
    well: tuple[int, ...] = (0,),
    bounded: bool = False,
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
        bound_memory(process, spaces=bounded)
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
    if process.returncode not in well:
        raise failure(name, process.returncode, pump.errors, cwd)
    return pump.output


def bound_memory(process: subprocess.Popen[bytes], *, spaces: bool = True) -> None:
    """Of a git that has begun, and of what it starts. It compares lines by forty bytes for each,
    and a file of a space can have nothing else; without `spaces` it reads a project, which may be
    large, and whose list of borrowed objects may never end. Packs are mapped, and do not count."""
    most = MOST_MEMORY
    if not spaces:
        most = max(most, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
    with contextlib.suppress(OSError):
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_DATA)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.prlimit(process.pid, resource.RLIMIT_DATA, (most, most))


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


def failure(name: str, code: int, errors: bytes, folder: Path | None = None) -> CarrelError:
    """`folder` is on the disk that git wrote to."""
    text = redact(errors.decode(errors="replace"))
    lines = [line.strip() for line in re.split(r"[\r\n]+", text)]
    said = [line for line in lines if line and not _PROGRESS_LINE.search(line)]
    words = " / ".join(said[-_SHOWN_LINES:]) or f"it ended with code {code} and said nothing"
    if _NO_MEMORY in text:
        return GitFailed(
            f"git {name} needs more than {MOST_MEMORY >> 20:,} MiB of memory: a file is too large,"
            " or has too many lines.",
            hint="Leave that file out, or copy it: carrel cp",
            exit_code=code,
        )
    full = _NO_ROOM.search(text)
    if full or (folder is not None and _NOT_WRITTEN.search(text) and _is_full(folder)):
        words = full[0].strip().rstrip(".") if full else words
        return InsufficientDisk(
            f"git {name} ran out of disk space: {words}.", hint="Free some space and try again."
        )
    return GitFailed(f"git {name} failed: {words}.", hint=_hint(text), exit_code=code)


def _is_full(folder: Path) -> bool:
    try:
        return is_short(free_room(folder))
    except OSError:
        return False


def _hint(text: str) -> str:
    if "Host key verification failed" in text:
        return "Connect to the host once with ssh by hand, so that its key is known."
    if "Authentication failed" in text or "Permission denied (publickey" in text:
        return "Check the credentials: git must be able to fetch without asking."
    if "Could not resolve host" in text:
        return "Check the address and the network."
    return ""


# Commands whose input is written, or output is read, as it comes

Write = Callable[[bytes], object]

_END_S = 60.0
"""From the end of its input to git's own: it writes an index of what it got."""
_SAID = 16 << 10


@contextlib.contextmanager
def feed_git(args: Sequence[str], *, folder: Path, timeout_s: float) -> Iterator[Write]:
    """Runs git in `folder`, a bare repository of ours, and gives it what is written. When the
    context ends it has ended well; else `GitFailed`, `GitTimeout`, `InsufficientDisk`."""
    with _running(args, folder, feeds=True) as (process, errors):
        late = threading.Event()

        def give_up() -> None:
            late.set()
            kill(process)

        timer = threading.Timer(timeout_s, give_up)
        timer.start()
        stdin = process.stdin
        assert stdin is not None
        try:
            # What git did not take is told by how it ended.
            with contextlib.suppress(BrokenPipeError):
                yield stdin.write
                stdin.close()
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            late.set()
        finally:
            timer.cancel()
            timer.join()
        _expect_well(args, errors, process, timeout_s if late.is_set() else None)


def read_git(args: Sequence[str], *, folder: Path, idle_s: float) -> Generator[bytes, None, None]:
    """What git prints, as it prints it. It may be silent for so long; how long the reader
    takes does not count."""
    with _running(args, folder, feeds=False) as (process, errors):
        stdout = process.stdout
        assert stdout is not None
        silent = None
        while True:
            if not is_readable(stdout.fileno(), idle_s):
                silent = idle_s
                break
            piece = os.read(stdout.fileno(), _CHUNK)
            if not piece:
                break
            yield piece
        if silent is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
        _expect_well(args, errors, process, silent)


@contextlib.contextmanager
def _running(
    args: Sequence[str], folder: Path, *, feeds: bool
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The process, and a file in memory with what it says of errors: on a full disk there would be
    no room to say that it is full."""
    with Descriptor(os.memfd_create("errors", os.MFD_CLOEXEC)) as errors:
        try:
            process = subprocess.Popen(
                ["git", *options(remote=False), *args],
                cwd=folder,
                env=environment({"GIT_DIR": "."}, remote=False),
                stdin=subprocess.PIPE if feeds else subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if feeds else subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                umask=0o077,
            )
        except FileNotFoundError as error:
            raise GitFailed("git is not installed.", hint="Install the package `git`.") from error
        bound_memory(process)
        try:
            yield process, errors
        finally:
            kill(process)
            close_streams(process)


def _expect_well(
    args: Sequence[str], errors: int, process: subprocess.Popen[bytes], late_s: float | None
) -> None:
    name = command_name(["git", *args])
    code = process.poll()
    if late_s is not None or code is None:
        raise GitTimeout(f"git {name} did not finish in time.", hint="Try again when less runs.")
    if code != 0:
        size = os.fstat(errors).st_size
        raise failure(name, code, os.pread(errors, _SAID, max(0, size - _SAID)))


# Git's progress lines as steps that we report

_STEP = re.compile(r"(?:remote: )?([A-Z][a-z]+(?: [a-z]+)*):\s+\d+% \((\d+)/(\d+)\)(.*)")
_SIZE = re.compile(r", ([\d.]+) ([KMG]i)?B\b|, ([\d.]+) bytes")
_UNITS = {None: 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
_STAGES = {"Receiving objects": "receiving", "Updating files": "checking out"}


def listener(on_progress: OnProgress) -> Callable[[str], None]:
    """Turns lines of git's stderr into reports; other lines are not for it."""

    def hear(line: str) -> None:
        step = parse(line)
        if step is not None:
            on_progress(step)

    return hear


def parse(line: str) -> Progress | None:
    found = _STEP.match(line)
    if not found:
        return None
    size = _SIZE.search(found[4])
    amount = 0
    if size:
        amount = int(float(size[1] or size[3]) * _UNITS[size[2]])
    stage = _STAGES.get(found[1], found[1].lower())
    return Progress(stage, int(found[2]), int(found[3]), amount)
