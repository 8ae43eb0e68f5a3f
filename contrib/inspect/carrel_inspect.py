"""Inspect's sandbox environment `carrel`: each sample of a task gets a space of its own.

Inspect finds it by its entry point, so `sandbox="carrel"` is all that a task says. Commands run
in the space as its one user. Files are read and written by commands too: so paths outside of
the tree work, and the permissions of that user hold.
"""

from __future__ import annotations

import errno
import os
from typing import Any, Literal, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel, ConfigDict

import carrel
from carrel.client import AsyncSpace, RunResult

LABEL = "made-by"
MAKER = "inspect"
TRANSFER_S = 600.0
"""For a file of the largest size on a busy machine; a pipe that nobody writes to ends here."""

# Both leave with the number of an error of the system, which OSError turns into the right class.
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


class CarrelConfig(BaseModel):
    """What the spaces of a task are made from, and how they are confined. What is left out is
    as Carrel has it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    project: str | None = None
    """A folder, the URL of a repository or an archive; without, the tree is empty."""
    network: str | None = None
    """As `carrel new --network` takes it."""
    tier: str | None = None
    """The limits of the space: as `carrel new --tier` takes it."""
    env: dict[str, str] = {}
    """Variables for all commands."""


@sandboxenv(name="carrel")
class CarrelSandboxEnvironment(SandboxEnvironment):
    """One space. `space` is Carrel's handle of it, for what Inspect has no word for."""

    def __init__(self, client: carrel.AsyncClient, space: AsyncSpace, users: list[str]) -> None:
        super().__init__()
        self.space = space
        self._client = client
        self._users = users

    # Its life

    @classmethod
    async def sample_init(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        metadata: dict[str, str],
    ) -> dict[str, SandboxEnvironment]:
        client = carrel.AsyncClient()
        try:
            space = await client.create(**_options(config))
            found = await space.run(["sh", "-c", "id -un; id -u"], check=True)
        except BaseException:
            await client.close()
            raise
        return {"default": cls(client, space, found.stdout.split())}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        for environment in environments.values():
            await environment.as_type(cls).close()

    async def close(self) -> None:
        """Removes the space with all that is in it, unless somebody did."""
        try:
            await self.space.remove(force=True)
        except carrel.errors.SpaceNotFound:
            return
        finally:
            await self._client.close()

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """Removes what evaluations left: all of it, or the space of that id or name."""
        async with carrel.AsyncClient() as client:
            async for space in client.spaces(labels={LABEL: MAKER}):
                if id in (None, space.id, space.name):
                    await space.remove(force=True)

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return CarrelConfig(**config)

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        self._check_user(user)
        return SandboxConnection(type="carrel", command=f"carrel shell {self.space.id}")

    def default_polling_interval(self) -> float:
        # The daemon is on this machine: asking costs little.
        return 0.2

    # Commands

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """A command that timed out is not tried again: a space loses none, so it was slow, and
        a second one would do what it did twice."""
        self._check_user(user)
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        try:
            result = await self._run(cmd, input, cwd or ".", env or {}, timeout, limit)
        except carrel.errors.CommandNotFound as error:
            return ExecResult(False, 127, "", error.message)
        except carrel.errors.CommandNotExecutable as error:
            raise PermissionError(errno.EACCES, error.message, cmd[0]) from error
        except (carrel.errors.CommandInvalid, carrel.errors.RequestError) as error:
            # Such as an argument that is too long: the model can do something about it.
            return ExecResult(False, 126, "", str(error))
        if result.truncated:
            raise OutputLimitExceededError(
                SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, result.stdout or result.stderr
            )
        return ExecResult(result.ok, result.code, result.stdout, result.stderr)

    def _check_user(self, user: str | None) -> None:
        if user is not None and user not in self._users:
            raise SandboxUserUnsupportedError(
                f"A space of Carrel has one user, {self._users[0]}; no command runs as {user!r}."
            )

    async def _run(
        self,
        argv: list[str],
        stdin: str | bytes | None,
        cwd: str,
        env: dict[str, str],
        timeout_s: float | None,
        limit: int,
    ) -> RunResult:
        try:
            result = await self.space.run(
                argv,
                stdin=stdin,
                cwd=cwd,
                env=env,
                timeout_s=timeout_s,
                max_output_bytes=limit,
            )
        except (
            carrel.errors.DaemonError,
            carrel.errors.SandboxUnavailable,
            carrel.errors.SpaceError,
        ) as error:
            raise SandboxUnavailableError(str(error)) from error
        if result.run.exit is not None and result.run.exit.reason == "timeout":
            raise TimeoutError(f"{argv[0]} did not end within {timeout_s} seconds.")
        return result

    # Files

    async def write_file(self, file: str, contents: str | bytes) -> None:
        await self._transfer([WRITE, "write", file], file, contents, 0)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        # One more than is allowed, so that a file without an end is noticed too.
        most = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE + 1
        data = await self._transfer([READ, "read", file, str(most)], file, None, most)
        if len(data) == most:
            limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR
            raise OutputLimitExceededError(limit, None)
        return data.decode() if text else data

    async def _transfer(
        self, script: list[str], file: str, contents: str | bytes | None, most: int
    ) -> bytes:
        argv = ["/bin/sh", "-c", *script]
        # What it says when it fails comes on the other stream.
        result = await self._run(argv, contents, ".", {}, TRANSFER_S, max(most, 4096))
        if not result.ok:
            known = result.code in (errno.EISDIR, errno.ENOENT, errno.EACCES)
            number = result.code if known else errno.EIO
            said = os.strerror(number) if known else result.stderr.strip() or "not done"
            raise OSError(number, said, file)
        return result.stdout_bytes


def _options(config: SandboxEnvironmentConfigType | None) -> dict[str, Any]:
    """For the space of one sample. A configuration that is a text is the project."""
    found = CarrelConfig(project=config) if isinstance(config, str) else config or CarrelConfig()
    if not isinstance(found, CarrelConfig):
        raise TypeError(f"The sandbox carrel takes a CarrelConfig, not {type(found).__name__}.")
    return {**found.model_dump(exclude_none=True), "labels": {LABEL: MAKER}}
