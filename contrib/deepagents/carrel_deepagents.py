"""A backend of deepagents: the agent's files and commands are in a space of Carrel.

deepagents builds all its file tools on `execute`, `upload_files` and `download_files`. The tools
need `python3` in the sandbox. Paths are those of the sandbox, absolute; the project is at
`/workspace`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Unpack

from deepagents.backends.protocol import (
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
)
from deepagents.backends.sandbox import BaseSandbox

import carrel
from carrel.api.types.spaces import SpaceOptions
from carrel.client import RunResult, Space

COMMAND_S = 1800
"""For a command that the caller sets no time: the tests of a large project end in it."""
MAX_OUTPUT = 4 << 20
"""Of a command. The largest preview of a file that deepagents reads is 500 KB, in base64."""
MAX_FILE = 256 << 20
"""Of a file that is downloaded: all of it is held in memory."""
TRANSFER_S = 600.0
"""For a file of the largest size on a busy machine; a pipe that nobody writes to ends here."""
TIMED_OUT = 124
"""As a shell says it."""
CANNOT_RUN = 126

# Both leave with the number of an error of the system.
READ = f"""
[ -d "$1" ] && exit {errno.EISDIR}
[ -e "$1" ] || exit {errno.ENOENT}
[ -r "$1" ] || exit {errno.EACCES}
exec head -c "$2" -- "$1"
"""
WRITE = f"""
[ -d "$1" ] && exit {errno.EISDIR}
mkdir -p -- "$(dirname -- "$1")" || exit {errno.EACCES}
(: >>"$1") || exit {errno.EACCES}
exec cat >"$1"
"""
CODES = {
    errno.EISDIR: "is_directory",
    errno.ENOENT: "file_not_found",
    errno.EACCES: "permission_denied",
}


class CarrelSandbox(BaseSandbox):
    """A space as a backend. Who made the space removes it: `create` does both."""

    def __init__(self, space: Space, *, timeout_s: int = COMMAND_S) -> None:
        self.space = space
        self._timeout_s = timeout_s

    @classmethod
    @contextmanager
    def create(
        cls,
        project: str | os.PathLike[str] | None = None,
        *,
        timeout_s: int = COMMAND_S,
        **options: Unpack[SpaceOptions],
    ) -> Iterator[CarrelSandbox]:
        """A new space of the project for as long as the context is open, with what
        `carrel.Client.space` takes."""
        with carrel.Client() as client, client.space(project, **options) as space:
            yield cls(space, timeout_s=timeout_s)

    @property
    def id(self) -> str:
        return self.space.id

    # Commands

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """What cannot run is an answer too, so that the agent can do something about it. Only
        when the space or the daemon is gone there is an error of Carrel."""
        argv = ["sh", "-c", f"exec 2>&1\n{command}"]
        timeout_s = self._timeout_s if timeout is None else timeout
        try:
            result = self.space.run(argv, timeout_s=timeout_s or None, max_output_bytes=MAX_OUTPUT)
        except (carrel.errors.CommandError, carrel.errors.RequestError) as error:
            return ExecuteResponse(output=str(error), exit_code=CANNOT_RUN)
        output = result.stdout
        if _timed_out(result):
            output += f"\nThe command did not end within {timeout_s} seconds."
        return ExecuteResponse(output, result.code, result.truncated)

    # Files

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return [FileUploadResponse(path, self._upload(path, data)) for path, data in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [self._download(path) for path in paths]

    def _upload(self, path: str, data: bytes) -> str | None:
        if not _usable(path):
            return "invalid_path"
        return _problem(self._script([WRITE, "write", path], data))

    def _download(self, path: str) -> FileDownloadResponse:
        if not _usable(path):
            return FileDownloadResponse(path, error="invalid_path")
        # One more than is allowed, so that a file without an end is noticed too.
        result = self._script([READ, "read", path, str(MAX_FILE + 1)])
        error = _problem(result)
        if error is None and len(result.stdout_bytes) > MAX_FILE:
            error = f"The file is larger than {MAX_FILE} bytes."
        content = result.stdout_bytes if error is None else None
        return FileDownloadResponse(path, content, error)

    def _script(self, words: list[str], stdin: bytes | None = None) -> RunResult:
        argv = ["/bin/sh", "-c", *words]
        most = MAX_FILE + 1
        return self.space.run(argv, stdin=stdin, timeout_s=TRANSFER_S, max_output_bytes=most)


def _usable(path: str) -> bool:
    return path.startswith("/") and "\0" not in path


def _timed_out(result: RunResult) -> bool:
    return result.run.exit is not None and result.run.exit.reason == "timeout"


def _problem(result: RunResult) -> str | None:
    """In deepagents' words where it has one."""
    if result.ok:
        return None
    if _timed_out(result):
        return f"The file was not transferred within {TRANSFER_S:.0f} seconds."
    return CODES.get(result.code) or result.stderr.strip() or f"The shell ended with {result.code}."
