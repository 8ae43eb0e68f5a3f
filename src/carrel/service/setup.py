"""Set-up commands: what makes a project usable runs once for each base, and later spaces begin with
the result.

The commands are the project's own, so they run in a sandbox as every command of a space does: in a
space that is made for them with the network, the variables and the limits that were asked for. Its
tree becomes a base on top of the project's, and the space is removed. A result is used again only
by the same account, for the same base, with the same settings and the same programs.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carrel import __version__
from carrel.domain.access import LOCAL
from carrel.domain.collaborators import Bases
from carrel.domain.environments import HomeTools, SetupCommand, SetupStage
from carrel.domain.errors import (
    BaseNotFound,
    CommandError,
    ProjectError,
    SetupFailed,
    SpaceInvalid,
    SpaceNotFound,
    TreeDamaged,
)
from carrel.domain.limits import Limits
from carrel.domain.projects import OnProgress, Progress, ProjectKind
from carrel.domain.runs import RunRecord, RunState, Stream
from carrel.domain.runtimes import Command, Network
from carrel.domain.spaces import Retention, Space, SpaceRequest
from carrel.domain.trees import Base, Tree, TreeDriver
from carrel.service.creation import Creator
from carrel.service.open_spaces import OpenSpaces
from carrel.service.runs import Runs
from carrel.service.shared import Locks
from carrel.service.spaces import Spaces

COMMAND_S = 3600.0
"""Installing a large project builds its native parts."""
TELL_S = 30.0
"""Clients give up on a daemon that is silent for some minutes."""
LEFT_S = 4 * COMMAND_S
"""The space of a daemon that died goes when the next one starts; and by itself if it cannot."""
LAST_LINES = 12
LAST_BYTES = 4096
"""What an error tells of a command's output."""
MOST_TEXT = 300
"""Of a command, in messages and records: a file of the project may be all one command."""


@dataclass(frozen=True)
class ProjectSetup:
    """What a project says of its set-up."""

    commands: tuple[SetupCommand, ...]
    programs: Mapping[str, list[int]]
    """The programs of the host that it needs, as they are now."""


@dataclass(frozen=True)
class SetupTools:
    """What the commands are found with. Blocking."""

    asks: Callable[[Path], bool]
    """Whether a folder says itself that it is to be set up."""
    inspect: Callable[[TreeDriver, Tree, HomeTools], ProjectSetup]
    """Reads the files of a tree, and runs nothing."""
    is_same: Callable[[Mapping[str, list[int]]], bool]
    """Whether programs are as they were."""


@dataclass(frozen=True)
class Setups:
    folder: Path
    """Holds a file for each result."""
    bases: Bases
    spaces: Spaces
    open_spaces: OpenSpaces
    creator: Creator
    runs: Runs
    locks: Locks
    tools: SetupTools

    async def asked(self, request: SpaceRequest) -> bool:
        """Whether it was said, or is said by the project: one that the owner has on this machine.
        What runs then has no more rights than any command of the space."""
        if request.run_setup is not None:
            return request.run_setup
        project = request.project
        if request.guest or request.parent or request.base_id or request.place:
            return False
        if project.kind is not ProjectKind.FOLDER:
            return False
        with contextlib.suppress(ProjectError):
            return await asyncio.to_thread(self.tools.asks, Path(project.location))
        return False

    async def prepared(
        self, request: SpaceRequest, limits: Limits, on_progress: OnProgress
    ) -> tuple[SpaceRequest, tuple[str, ...]]:
        """The request with a base on which the commands have run, and the commands. Raises
        `SetupFailed`, `SpaceInvalid`, and what making a space raises; nothing is left then."""
        request = dataclasses.replace(request, run_setup=False)
        if request.place:
            raise SpaceInvalid(
                "A folder of this machine is not set up: it is used as it is.",
                hint="Leave the set-up out.",
            )
        base = await self.creator.found_base(request, on_progress)
        environment = request.environment
        if environment is not None:
            # Spaces that begin with the result start their own.
            environment = dataclasses.replace(environment, services=())
        first = dataclasses.replace(
            request,
            environment=environment,
            base_id=base.base_id,
            name="",
            space_id="",
            agent="",
            mcp=(),
            # By a label others would see it, and write what the owner's spaces begin with.
            labels={},
            transient=True,
            setting_up=True,
            description="Runs the set-up commands of the project.",
            retention=Retention(ttl_s=LEFT_S, discard=True),
        )
        draft = await asyncio.to_thread(
            self.creator.equipped, self.creator.draft(first, limits), first
        )
        key = _key(base, draft, first)
        async with self.locks.alone(f"setup\0{key}"):
            known = await asyncio.to_thread(self._known, key)
            if known is None:
                known = await self._run(first, draft, on_progress)
                await asyncio.to_thread(self._write, key, known)
        result = dataclasses.replace(request, base_id=known["base"])
        return result, tuple(known["commands"])

    async def _run(
        self, request: SpaceRequest, draft: Space, on_progress: OnProgress
    ) -> dict[str, Any]:
        space_id = draft.space_id
        space = await self.spaces.make(draft, request, on_progress)
        try:
            opened = await self.open_spaces.of(space)
            if not opened.runtime.capabilities.own_paths:
                raise SpaceInvalid(
                    f"The runtime {opened.runtime.name} shows each space at another path, so what "
                    "one has installed does not work in others.",
                    hint="Use the runtime bubblewrap, or leave the set-up out: --no-setup",
                )
            found = await asyncio.to_thread(
                self.tools.inspect, opened.driver, opened.tree, space.tools
            )
            commands = [one for one in found.commands if one.stage is SetupStage.CREATE]
            if not commands:
                raise SpaceInvalid(
                    "Nothing in this project says how it is set up.",
                    hint="`carrel inspect` says what was found. Leave the set-up out.",
                )
            for command in commands:
                await self.run_one(space, command, on_progress)
            base = await self._frozen(space_id)
        finally:
            # Its owner may have given it up.
            with contextlib.suppress(SpaceNotFound):
                await self.spaces.remove(LOCAL, space_id, force=True)
        texts = [_shown(command) for command in commands]
        return {"base": base.base_id, "commands": texts, "programs": dict(found.programs)}

    async def run_one(self, space: Space, command: SetupCommand, tell: OnProgress) -> None:
        """To its end, in the space. Raises `SetupFailed` with its last lines."""
        wanted = Command(command.argv, cwd=command.folder, timeout_s=COMMAND_S)
        hint = "It runs in a sandbox as `carrel exec` does; with --no-setup you can try it there."
        if space.network is Network.NONE:
            hint = "Packages are fetched with --network open; --no-setup leaves the set-up out."
        try:
            record = await self.runs.start(space.space_id, wanted)
        except CommandError as error:
            message = f"The set-up command `{_shown(command)}` cannot run: {error.message}"
            raise SetupFailed(message, hint=error.hint) from error
        while record.state in (RunState.STARTING, RunState.RUNNING):
            tell(Progress(f"set-up: {_shown(command)}", 0, 0))
            record = await self.runs.wait(record.run_id, TELL_S)
        if record.exit is None or record.exit.code != 0:
            failed = f"failed: {record.failure}" if record.failure else "did not end"
            how = failed if record.exit is None else f"ended with {record.exit.code}"
            lines = await self._last_lines(record)
            raise SetupFailed(
                "\n".join((f"The set-up command `{_shown(command)}` {how}. It said last:", *lines)),
                hint=hint,
                command=_shown(command),
            )

    async def _last_lines(self, record: RunRecord) -> list[str]:
        found: list[str] = []
        for stream in Stream:
            said = await self.runs.last(record, stream, LAST_BYTES)
            found += said.decode("utf-8", "replace").splitlines()[-LAST_LINES:]
        return found

    async def _frozen(self, space_id: str) -> Base:
        """When all that ran in it has ended, so that nothing writes meanwhile."""
        async with self.spaces.at_rest(space_id) as stopped:
            opened = await self.open_spaces.of(stopped)
            await self.open_spaces.ensure(opened)
            return await asyncio.to_thread(opened.driver.freeze, opened.tree)

    # Results

    def _known(self, key: str) -> dict[str, Any] | None:
        """None for what is gone, or was made with other programs."""
        try:
            known: dict[str, Any] = json.loads((self.folder / key).read_bytes())
            self.bases.use(known["base"])
            return known if self.tools.is_same(known["programs"]) else None
        except (OSError, ValueError, KeyError, BaseNotFound, TreeDamaged):
            return None

    def _write(self, key: str, result: dict[str, Any]) -> None:
        """Forgets those whose bases clean-up has removed."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        draft = self.folder / f"{key}.{secrets.token_hex(4)}"
        draft.write_text(json.dumps(result))
        draft.rename(self.folder / key)
        there = {base.base_id for base in self.bases.list()}
        for path in self.folder.iterdir():
            with contextlib.suppress(OSError, ValueError, KeyError):
                if json.loads(path.read_bytes())["base"] not in there:
                    path.unlink()


def _system(request: SpaceRequest) -> tuple[object, ...]:
    """What of the environment such commands see."""
    found = request.environment
    return () if found is None else (found.image_id, found.user, dict(found.variables))


def _shown(command: SetupCommand) -> str:
    text = command.text
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}…"


def _key(base: Base, space: Space, request: SpaceRequest) -> str:
    """All that the result depends on, and whose it is: what somebody else's commands have left
    is nobody's to begin with."""
    parts = (
        *(__version__, base.base_id, space.project, space.runtime, space.driver, space.network),
        *(space.tools, space.shown, space.packages, dict(space.env)),
        *(space.guest, space.account, space.realm, os.geteuid()),
        *(request.image, _system(request)),
    )
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogateescape")).hexdigest()
