"""What a project brings for an agent: settings, hooks, servers, extensions. It is the project's
code, and would run in the agent's process or beside it, where the agent's key is.

It is used when the owner has agreed to just this content of this project. The agreement is kept by
a digest of both, so it does not hold for what somebody has changed, the agent itself included, nor
for another project with the same settings. Without it the agent is started without all of it, by
its own switches: nothing then depends on what becomes of the files after they were looked at. With
it, what runs in the space at the same time could still change them; but that can read the
environment of the agent as well.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import os
from collections.abc import Sequence

from carrel.domain.access import Caller
from carrel.domain.agents import (
    PROJECT_SETTINGS,
    Agreements,
    Brought,
    Confiding,
    Frontend,
    Frontends,
)
from carrel.domain.collaborators import Contents
from carrel.domain.errors import (
    NotTrusted,
    PathError,
    PathNotFound,
    PathWrongKind,
    StateConflict,
    UnsupportedFrontend,
)
from carrel.domain.files import Files
from carrel.domain.projects import ProjectKind
from carrel.domain.spaces import Space
from carrel.domain.trees import EntryType
from carrel.service.access import require_admin
from carrel.service.open_spaces import OpenSpace, OpenSpaces
from carrel.service.spaces import Spaces

MOST_ENTRIES = 5000
MOST_BYTES = 64 << 20
"""More than this nobody can have looked at, and it would be read at every turn."""
MOST_DEPTH = 32
"""Of folders, those behind links too."""
GIT = ".git"
_BLOCK = 1 << 20
_UNKNOWN = (PROJECT_SETTINGS, False)


class Trust:
    def __init__(
        self,
        spaces: Spaces,
        open_spaces: OpenSpaces,
        contents: Contents,
        frontends: Frontends,
        agreements: Agreements,
    ) -> None:
        self._spaces = spaces
        self._open_spaces = open_spaces
        self._contents = contents
        self._frontends = frontends
        self._agreements = agreements

    async def brought(self, caller: Caller, word: str, frontend: str = "") -> Brought:
        """By the project of a space, for its agent or another. `UnsupportedFrontend`."""
        space = await self._spaces.existing(caller, word)
        if not (name := frontend or space.agent):
            raise UnsupportedFrontend(
                f"{space.name} has no agent yet.", hint="Say which: --agent NAME"
            )
        opened = await self._open_spaces.of(space)
        return await self.look(opened, self._frontends.get(name))

    async def say(
        self, caller: Caller, word: str, *, digest: str, agreed: bool, frontend: str = ""
    ) -> Brought:
        """The owner's word for what it is now. Raises `StateConflict` when that is not what the
        owner has looked at, and `NotTrusted` for what nobody can agree to."""
        await self._spaces.existing(caller, word)
        require_admin(caller)
        found = await self.brought(caller, word, frontend)
        if found.digest != digest:
            raise StateConflict(
                "What the project brings for agents has changed meanwhile.",
                hint="Look at it again.",
            )
        return await self.agree(found, agreed=agreed)

    async def agree(self, found: Brought, *, agreed: bool = True) -> Brought:
        if not found.paths:
            return found
        if found.problem and agreed:
            raise NotTrusted(
                f"{', '.join(found.paths)} cannot be agreed to: {found.problem}.",
                hint="Change that in the tree of the space.",
            )
        if not found.problem:
            await asyncio.to_thread(self._agreements.say, found.digest, agreed)
        return dataclasses.replace(found, agreed=agreed)

    async def look(self, opened: OpenSpace, frontend: Frontend) -> Brought:
        paths, _ = _reads(frontend)
        if not paths:
            return Brought(frontend.name)
        await self._open_spaces.ensure(opened)
        return await asyncio.to_thread(self._look, opened, frontend.name, paths)

    def _look(self, opened: OpenSpace, name: str, paths: Sequence[str]) -> Brought:
        with self._contents.files(opened.driver, opened.tree) as files:
            found = self._found(_Reading(files, _whose(opened.space)), name, paths)
            return dataclasses.replace(found, elsewhere=_leads_elsewhere(files))

    def _found(self, reading: _Reading, name: str, paths: Sequence[str]) -> Brought:
        there = tuple(path for path in paths if reading.is_there(path))
        try:
            for path in there:
                reading.entry(path, 0)
        except (_Unfit, PathError) as error:
            return Brought(name, there, tuple(reading.files), problem=str(error).rstrip("."))
        if not there:
            return Brought(name)
        digest = reading.digest.hexdigest()
        said = self._agreements.said(digest)
        return Brought(name, there, tuple(reading.files), digest, agreed=said)


def check(found: Brought, frontend: Frontend, space: str) -> tuple[str, ...]:
    """What the turn says of it, in sentences. Raises `NotTrusted` where the agent cannot be
    started without."""
    if found.trusted:
        return ()
    names = ", ".join(found.paths)
    how = f"carrel trust {space}"
    if not _reads(frontend)[1]:
        raise NotTrusted(
            f"The project brings {names} for its agent. {frontend.name} cannot ignore "
            "that, so it could reach the agent's key.",
            hint=f"Look at it, and agree: {how} --agent {frontend.name}",
            paths=list(found.paths),
        )
    return (f"What the project brings is switched off: {names}. To agree to it: {how}",)


def _whose(space: Space) -> tuple[str, ...]:
    """For which spaces the owner's word counts: those of the same project, or of none this one. A
    hook mostly calls a program of the tree; the same settings with another program are another
    project's trap. What a guest has made is not what the owner has."""
    project = space.project
    alone = space.space_id if project.kind is ProjectKind.EMPTY else ""
    return (str(project.kind), project.location, "guest" if space.guest else "", alone)


def _leads_elsewhere(files: Files) -> bool:
    try:
        return files.stat(GIT).type is not EntryType.FOLDER
    except PathNotFound:
        return False


def _reads(frontend: Frontend) -> tuple[tuple[str, ...], bool]:
    if isinstance(frontend, Confiding):
        return frontend.brought, frontend.goes_without
    return _UNKNOWN


class _Unfit(Exception):
    """Nobody can agree to it."""


class _Reading:
    """All that there is below some paths, as a digest of it. Links are followed as far as the tree
    goes; what leads out of it is not the project's, and may change without it."""

    def __init__(self, files: Files, whose: Sequence[str]) -> None:
        self._files = files
        self._bytes = 0
        self._entries = 0
        self.files: list[str] = []
        self.digest = hashlib.sha256()
        self._note(*whose)

    def is_there(self, path: str) -> bool:
        try:
            self._files.stat(path)
        except PathNotFound:
            return False
        return True

    def entry(self, path: str, depth: int) -> None:
        self._entries += 1
        if self._entries > MOST_ENTRIES or depth > MOST_DEPTH:
            raise _Unfit("it is too much to be looked at")
        info = self._files.stat(path)
        self._note(path, info.type, str(info.mode & 0o111), info.target or "")
        if info.type is EntryType.OTHER:
            raise _Unfit(f"{path} is neither a file nor a folder")
        if info.type is not EntryType.FOLDER:
            self.files.append(path)
        if info.type is EntryType.FILE:
            self._content(path)
        elif info.type is EntryType.FOLDER:
            self._folder(path, depth)
        else:
            self._behind(path, depth)

    def _behind(self, path: str, depth: int) -> None:
        try:
            self._content(path)
        except PathNotFound:
            return
        except PathWrongKind:
            self._folder(path, depth)

    def _folder(self, path: str, depth: int) -> None:
        for info in self._files.list(path):
            self.entry(f"{path}/{info.name}", depth + 1)
        self._note("end")

    def _content(self, path: str) -> None:
        content = hashlib.sha256()
        with self._files.open_read(path) as file:
            while block := file.read(_BLOCK):
                self._bytes += len(block)
                if self._bytes > MOST_BYTES:
                    raise _Unfit("it is too much to be looked at")
                content.update(block)
        self._note("content", content.hexdigest())

    def _note(self, *words: str) -> None:
        for word in words:
            said = os.fsencode(word)
            self.digest.update(len(said).to_bytes(8, "big") + said)
