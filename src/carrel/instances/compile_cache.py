"""What Node has compiled of a server's program, kept for its later starts.

A folder for each program as it is on the disk now. Sandboxes see it read-only; what comes into it
was written in the own folder of one that served nobody (see `service/instances/warm.py`).
Node looks itself whether an entry is of the source that it has, and of its own version; one before
22.1 leaves nothing. It is not asked for its version: it may be a file that an instance can write,
and runs in sandboxes only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from carrel.domain.instances import Found, Server, Transport, Wrap
from carrel.instances.folders import open_state, read_beneath
from carrel.linux.openat2 import open_beneath

NODES = ("node", "nodejs")
CACHE, DISABLED, OPTIONS = "NODE_COMPILE_CACHE", "NODE_DISABLE_COMPILE_CACHE", "NODE_OPTIONS"
OWN = "compiled"
"""The folder below a server's own that it writes to when it is to be filled."""
LEAVING = "leaving.cjs"
LEAVE = "process.once('SIGTERM', () => process.exit(0));\n"
"""Node writes when it ends by itself, which by a signal it does not."""
MOST_FILES, MOST_BYTES = 20_000, 256 << 20
"""Of one program: more is none that starts quickly."""
MOST = 32
"""Programs; the oldest go."""
PROGRAM = "program.json"
"""In a folder, beside what Node keeps there: whose it is."""
_NEW = ".new-"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")


class NodeCompileCaches:
    """Implements `carrel.domain.server_adapter.CompileCaches`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, server: Server, found: Found) -> str:
        said = {CACHE, DISABLED, OPTIONS} & server.env.keys()
        if said or not found.script or os.path.basename(found.argv[0]) not in NODES:
            return ""
        key = _key(found.argv, found.script)
        return str(self._folder / key) if key else ""

    def is_filled(self, path: str) -> bool:
        return os.path.isdir(path)

    def variables(self, binds: Collection[str]) -> dict[str, str]:
        mine = [path for path in binds if path.startswith(f"{self._folder}/")]
        return {CACHE: mine[0]} if mine else {}

    def filling(self, server: Server, *, streams: bool) -> Server:
        if streams:
            # Nobody will connect to them: by the bridge it gets its handshake all the same.
            server = replace(server, transport=Transport.STDIO, wrap=Wrap.STDIO)
        return replace(
            server,
            name=f"{server.name}-compiling",
            env={
                **server.env,
                CACHE: f"{{state}}/{OWN}",
                OPTIONS: f"--require={{state}}/{LEAVING}",
            },
            files={**server.files, LEAVING: LEAVE},
            tool_ready=None,
            warm=0,
        )

    @contextlib.contextmanager
    def empty_project(self) -> Iterator[Path]:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=_NEW, dir=self._folder))
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def keep(self, path: str, found: Found, state: Path) -> bool:
        made = Path(tempfile.mkdtemp(prefix=_NEW, dir=self._folder))
        try:
            count = _collect(state, made)
            if count and not os.path.isdir(path):
                about = {"argv": found.argv, "script": found.script}
                (made / PROGRAM).write_text(json.dumps(about))
                # Its words are nobody's who does not know them.
                os.chmod(made / PROGRAM, 0o600)
                os.chmod(made, 0o755)
                os.rename(made, path)
            return count > 0
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def sweep(self, kept: Collection[str]) -> None:
        try:
            entries = [entry for entry in os.scandir(self._folder) if entry.path not in kept]
        except FileNotFoundError:
            return
        entries.sort(key=lambda entry: entry.stat().st_mtime, reverse=True)
        good = [entry.path for entry in entries if _is_good(Path(entry.path))][:MOST]
        for entry in entries:
            if entry.path not in good:
                shutil.rmtree(entry.path, ignore_errors=True)


def _is_good(folder: Path) -> bool:
    """Whole, and of a program that is as it was."""
    try:
        about = json.loads((folder / PROGRAM).read_text())
        return folder.name == _key(tuple(about["argv"]), about["script"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _key(argv: tuple[str, ...], script: str) -> str:
    """Empty when something of it is not there."""
    digest = hashlib.sha256(repr(argv).encode())
    try:
        for path in _decisive(argv[0], script):
            about = os.stat(path)
            stamp = (path, about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns)
            digest.update(repr(stamp).encode())
    except OSError:
        return ""
    return digest.hexdigest()[:24]


def _decisive(node: str, script: str) -> Iterator[str]:
    """What is another file once Node, the program or what it uses was installed anew."""
    yield os.path.realpath(node)
    yield script
    for parent in Path(script).parents:
        for name in ("package.json", "node_modules/.package-lock.json"):
            if (parent / name).is_file():
                yield str(parent / name)


def _collect(state: Path, to: Path) -> int:
    """How many files. The sandbox may have left anything there; nothing runs in it any more.
    Raises OSError."""
    count = size = 0
    root = open_state(state)
    try:
        for folder in _names(root, OWN):
            for name in _names(root, f"{OWN}/{folder}"):
                content = read_beneath(root, f"{OWN}/{folder}/{name}", MOST_BYTES - size)
                if content is None:
                    continue
                count, size = count + 1, size + len(content)
                if count > MOST_FILES:
                    return count
                (to / folder).mkdir(exist_ok=True)
                os.chmod(to / folder, 0o755)
                (to / folder / name).write_bytes(content)
                os.chmod(to / folder / name, 0o444)
    finally:
        os.close(root)
    return count


def _names(root: int, path: str) -> list[str]:
    try:
        found = open_beneath(root, path.encode(), follow=False)
    except OSError:
        return []
    try:
        names = os.listdir(f"/proc/self/fd/{found}")
    except OSError:
        return []
    finally:
        os.close(found)
    return [name for name in names if _NAME.fullmatch(name)]
