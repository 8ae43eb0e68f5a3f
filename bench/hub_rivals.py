"""redis-server, started for the benchmark on a Unix socket in a folder of its own."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.measuring import say

START_S, END_S = 20.0, 20.0
"""It is there in some milliseconds; on a busy disk it takes longer to end."""
CALL_S = 60.0
"""To throw away some hundred megabytes, with a disk that is behind."""
_LOOK_S = 0.01
_SETTINGS = (
    *("--port", "0", "--daemonize", "no", "--save", "", "--appendonly", "yes"),
    # What it wrote is not written again while something is measured.
    *("--auto-aof-rewrite-percentage", "0"),
)


class Unavailable(Exception):
    """Why Redis cannot be measured here."""


class Redis:
    def __init__(self, socket: Path, client: Any) -> None:
        self.socket = str(socket)
        self._client = client
        self._streams = 0

    def set_sync(self, how: str) -> None:
        """`always`: an answer means that it is on the disk; `everysec`: soon."""
        self._client.config_set("appendfsync", how)

    def new_streams(self, count: int) -> list[str]:
        """Names; the streams of before are gone."""
        self._client.flushall()
        self._streams += count
        return [f"bench:{self._streams - number}" for number in range(count)]

    @property
    def version(self) -> str:
        return str(self._client.info("server")["redis_version"])


def find_redis() -> str | None:
    """The server is the same program as its checker, under another name. Debian's package of
    the tools has it without a service that would be started."""
    return shutil.which("redis-server") or shutil.which("redis-check-rdb")


@contextmanager
def open_redis(folder: Path) -> Iterator[Redis]:
    """Raises `Unavailable`."""
    program = find_redis()
    if program is None:
        raise Unavailable("redis-server is not installed")
    if importlib.util.find_spec("redis") is None:
        raise Unavailable("the Python package redis is not installed")
    folder.mkdir()
    socket = folder / "socket"
    words = ["redis-server", *_SETTINGS, "--unixsocket", str(socket), "--dir", str(folder)]
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(
            words,
            executable=program,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        redis = Redis(socket, _connect(socket, server, folder / "log"))
        say(f"redis-server {redis.version} is there")
        yield redis
    finally:
        _stop(server)


def _connect(socket: Path, server: subprocess.Popen[bytes], log: Path) -> Any:
    import redis

    client = redis.Redis(unix_socket_path=str(socket), socket_timeout=CALL_S)
    until = time.monotonic() + START_S
    while True:
        try:
            client.ping()
            return client
        except redis.ConnectionError:
            if server.poll() is not None or time.monotonic() > until:
                lines = log.read_text(errors="replace").strip().splitlines()
                raise Unavailable(f"redis-server did not start: {lines[-1:]}") from None
            time.sleep(_LOOK_S)


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(END_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
