"""Offers a server that speaks on its standard streams over streamable HTTP, at /mcp.

The MCP SDK's own transport stands towards clients, and messages pass as they are. Each session
has a server process of its own, which ends with it. It is run by Carrel's interpreter as

    python -I bridge.py --fd N [--inside PORT_FILE] -- COMMAND…

with the listeners and the token of `uvicorn_shim.py`. The stateless protocol of 2026-07-28 is
refused in the way that has clients begin with a handshake: a process on streams needs one.

The process of the first session is started before anything else is done: the SDK takes as long
to load as most servers do to start. That session is the manager's, who looks whether the server
answers; the process of the next one is started when it ends, for that is who asked for it all.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

MARK = "CARREL_BRIDGE_SESSION"
"""In the environment of a session's processes, so that those who went away from their parent
are found too."""
EXECUTING_WAITS = 1000
"""Of half a millisecond, for a process that is between two programs, and has no environment of
either."""
READ_TRIES = 16
"""For one that was executed between two looks at it, or has no environment at all."""
KILL_S = 5.0
"""For killed processes to be gone; only what hangs in the kernel takes longer."""
SESSIONS = "bridge_sessions"
BARE = ("mcp", "mcp.server", "mcp.shared")
"""Packages of the SDK that import all of it, of which we need a few modules."""


def beside(name: str) -> ModuleType:
    """A file of this folder, by its path: the package may not be shown in the sandbox."""
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


if TYPE_CHECKING:
    from carrel.instances.inside import uvicorn_shim as shim
else:
    shim = beside("uvicorn_shim")


class ServerProcess:
    """One process of the server, in a session of its own, with pipes."""

    def __init__(self, command: list[str]) -> None:
        """Raises OSError."""
        self._mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, MARK: self._mark},
            start_new_session=True,
        )

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """It, and all that came of it: until there is none, for one may have begun another while
        it was looked for."""
        wanted = f"{MARK}={self._mark}".encode()
        until = time.monotonic() + KILL_S
        while found := [pid for pid in processes() if has(pid, wanted)]:
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > until:
                return
            time.sleep(0.001)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(KILL_S)


def processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def has(pid: int, wanted: bytes) -> bool:
    """What has ended, and is not reaped yet, has no environment."""
    folder, tries, waits = Path("/proc", str(pid)), READ_TRIES, EXECUTING_WAITS
    try:
        while not (found := (folder / "environ").read_bytes()):
            if not tries or not waits:
                return False
            if _is_executing(folder):
                waits -= 1
                time.sleep(0.0005)
            else:
                tries -= 1
    except OSError:
        return False
    return wanted in found.split(b"\0")


def _is_executing(folder: Path) -> bool:
    """It has memory, and no end of an environment yet."""
    fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
    return fields[20] != b"0" and fields[48] == b"0"


class ServerProcesses:
    """Makes them, the first two ahead of those who need them."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self._ahead: ServerProcess | None = None
        self._more = 2

    def begin(self) -> None:
        if not self._more or self._ahead is not None:
            return
        self._more -= 1
        with contextlib.suppress(OSError):
            # Who asks for it is told.
            self._ahead = ServerProcess(self.command)

    def take(self) -> ServerProcess:
        """Raises OSError."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.lives:
            return ahead
        if ahead is not None:
            ahead.kill()
        return ServerProcess(self.command)

    def close(self) -> None:
        self._more = 0
        if self._ahead is not None:
            self._ahead.kill()


def sessions() -> ModuleType:
    """What the SDK is for, with as little of that as works."""
    found = sys.modules.get(SESSIONS)
    if found is None:
        try:
            with bare_packages():
                found = beside(SESSIONS)
        except (ImportError, AttributeError):
            # Another version of it: then all of it.
            for name in [name for name in sys.modules if name.split(".")[0] == BARE[0]]:
                del sys.modules[name]
            found = beside(SESSIONS)
    return found


@contextlib.contextmanager
def bare_packages() -> Iterator[None]:
    """Their modules can be imported, and nothing comes with these that they do not need."""
    for name in BARE:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.submodule_search_locations is None:
            raise ImportError(name)
        bare = ModuleSpec(name, None, is_package=True)
        bare.submodule_search_locations = list(spec.submodule_search_locations)
        sys.modules[name] = importlib.util.module_from_spec(bare)
    yield


def main(words: list[str]) -> None:
    token = os.environ.pop(shim.TOKEN, "")
    given, command = shim.options(words)
    children = ServerProcesses(command)
    children.begin()
    try:
        listeners = shim.ServerListeners(shim.given_fds(given), token, given.get("--inside", ""))
        sessions().serve(children, listeners)
    finally:
        children.close()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except shim.ShimError as error:
        sys.exit(f"carrel: the bridge cannot be started: {error}")
