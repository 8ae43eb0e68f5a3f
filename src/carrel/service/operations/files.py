"""Files of a space from outside, as the contract has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from carrel.api.types import runs as types
from carrel.domain.access import Caller
from carrel.domain.files import FileInfo, Files
from carrel.service.files import SpaceFiles, WriteRoom
from carrel.service.shared import CallerSlots

LISTS = 4
"""Of folders at the same time: there may be any number of files in one."""


class FileOperations:
    def __init__(self, files: SpaceFiles) -> None:
        self._files = files
        self._lists = CallerSlots(LISTS)

    async def write(
        self, caller: Caller, space: str, asked: types.WriteQuery, data: bytes | Iterator[bytes]
    ) -> types.File:
        bits = None if asked.mode is None else int(asked.mode, 8)

        room = WriteRoom(caller)

        def write(files: Files) -> FileInfo:
            content = data if isinstance(data, bytes) else room.pieces(data)
            files.write(asked.path, content, bits)
            return files.stat(asked.path)

        coming = None if isinstance(data, bytes) else data
        use = self._files.use(caller, space, write, writes=True, coming=coming, room=room)
        return _file(await use)

    async def delete(self, caller: Caller, space: str, asked: types.DeleteQuery) -> types.Done:
        def delete(files: Files) -> None:
            files.delete(asked.path, recursive=asked.recursive)

        return await self._change(caller, space, delete)

    async def stat(self, caller: Caller, space: str, asked: types.PathQuery) -> types.File:
        return _file(await self._files.use(caller, space, lambda files: files.stat(asked.path)))

    async def list(self, caller: Caller, space: str, asked: types.FolderQuery) -> types.FileList:
        def entries(files: Files) -> tuple[types.File, ...]:
            return tuple(map(_file, files.list(asked.path)))

        async with self._lists.of(caller.account):
            return types.FileList(entries=await self._files.use(caller, space, entries))

    async def move(self, caller: Caller, space: str, asked: types.MoveBody) -> types.Done:
        def move(files: Files) -> None:
            files.move(asked.source, asked.target, replace=asked.replace)

        return await self._change(caller, space, move)

    async def mkdir(self, caller: Caller, space: str, asked: types.FolderBody) -> types.Done:
        def mkdir(files: Files) -> None:
            files.mkdir(asked.path, int(asked.mode, 8), parents=asked.parents)

        await self._files.use(caller, space, mkdir, writes=True, room=WriteRoom(caller))
        return types.Done()

    async def copied(self, caller: Caller, space: str, asked: types.CopiedBody) -> types.Done:
        await self._files.copied(caller, space, asked.copy)
        return types.Done()

    async def _change(
        self, caller: Caller, space: str, work: Callable[[Files], None]
    ) -> types.Done:
        await self._files.use(caller, space, work, writes=True)
        return types.Done()


def _file(info: FileInfo) -> types.File:
    return types.File(
        name=info.name,
        type=info.type,
        mode=f"{info.mode:o}",
        size=info.size,
        modified_ns=info.modified_ns,
        target=info.target,
    )
