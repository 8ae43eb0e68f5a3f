"""`AsyncClient`: as `Client`, awaitable.

async with carrel.AsyncClient() as client, client.space("./project") as space:
    print((await space.run(["pytest"])).stdout)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from typing import Any, TypeVar, Unpack

from carrel.client import calls, models
from carrel.client.aio_generating import AsyncRequests
from carrel.client.aio_instances import AsyncInstances
from carrel.client.aio_link import AsyncLink
from carrel.client.aio_spaces import AsyncRunHandle, AsyncSpace
from carrel.client.calls import Call, Project, SpaceOptions
from carrel.client.creating import Creation, begin_patience, creating, new_key, unfinished
from carrel.client.exchange import Patience
from carrel.client.places import find_place
from carrel.client.requests import TIMEOUT_S, Answer, Request
from carrel.client.starting import starter
from carrel.client.watching import Return, Watch, is_stream
from carrel.domain.errors import DaemonUnavailable, SpaceNotFound

T = TypeVar("T")
OnProgress = Callable[[models.Progress], None]


class AsyncClient:
    """See `Client`. For one event loop; may be used by several tasks."""

    def __init__(
        self,
        *,
        data: str | os.PathLike[str] | None = None,
        socket: str | os.PathLike[str] | None = None,
        url: str | None = None,
        token: str | None = None,
        timeout_s: float = TIMEOUT_S,
        autostart: bool = True,
    ) -> None:
        place = find_place(
            data=os.fspath(data or ""),
            socket=os.fspath(socket or ""),
            url=url or "",
            token=token or "",
        )
        self.link = AsyncLink(place, timeout_s=timeout_s, start=starter(place, autostart))
        self.tokens = AsyncTokens(self.link)
        self.instances = AsyncInstances(self.link)
        self.requests = AsyncRequests(self.link)

    async def close(self) -> None:
        await self.link.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Spaces

    @contextlib.asynccontextmanager
    async def space(
        self,
        project: Project = None,
        *,
        keep: bool = False,
        on_progress: OnProgress | None = None,
        **options: Unpack[SpaceOptions],
    ) -> AsyncIterator[AsyncSpace]:
        """A new space for as long as the context is open; it is removed at the end, with all
        that was changed in it, unless `keep` says otherwise."""
        space = await self.create(project, on_progress=on_progress, **options)
        try:
            yield space
        finally:
            if not keep:
                with contextlib.suppress(SpaceNotFound):
                    await asyncio.shield(space.remove(force=True))

    async def create(
        self,
        project: Project = None,
        *,
        on_progress: OnProgress | None = None,
        **options: Unpack[SpaceOptions],
    ) -> AsyncSpace:
        """A new space, which stays until somebody removes it. `project` is a folder, the URL
        of a repository, an archive, or None for an empty tree."""
        content = calls.space_content(project, options)
        key, patience = new_key(), None
        while True:
            try:
                made = await self._create_once(creating(content, key), on_progress)
                return AsyncSpace(self.link, models.decode(made, models.SpaceInfo))
            except DaemonUnavailable as error:
                patience = patience or begin_patience(error)
                if not patience.failed(time.monotonic()):
                    raise
            await _pause(patience)

    async def _create_once(
        self, request: Request, on_progress: OnProgress | None
    ) -> dict[str, Any]:
        async with await self.link.open(request) as stream:
            if stream.head.kind != "text/event-stream":
                whole: dict[str, Any] = Answer(stream.head, await stream.read()).json()
                return whole
            creation = Creation()
            async for piece in stream:
                for step in creation.receive(piece):
                    if on_progress is not None:
                        on_progress(models.decode(step, models.Progress))
                if creation.space is not None:
                    return creation.space
        raise unfinished()

    async def get(self, word: str) -> AsyncSpace:
        """By id, name, or the unique beginning of an id."""
        return AsyncSpace(self.link, await self._send(calls.space(word)))

    async def spaces(
        self,
        *,
        states: Iterable[str] = (),
        labels: Mapping[str, str] | None = None,
        name: str = "",
    ) -> AsyncIterator[AsyncSpace]:
        """Newest first, page by page. Removed ones only when their state is asked for."""
        states, after = list(states), ""
        while True:
            page, after = await self._send(calls.spaces(states, labels or {}, name, after))
            for info in page:
                yield AsyncSpace(self.link, info)
            if not after:
                return

    async def undelete(self, word: str) -> AsyncSpace:
        """A new space with the changes of a removed one, by its id or name."""
        return AsyncSpace(self.link, await self._send(calls.undelete(word)))

    async def trash(self) -> list[models.Trashed]:
        """What `undelete` can bring back."""
        return await self._send(calls.trash())

    async def run(self, run_id: str) -> AsyncRunHandle:
        """A command that was started before, by anybody."""
        return AsyncRunHandle(self.link, await self._send(calls.run(run_id)))

    # What happens

    async def events(
        self, *, after: int | None = None, spaces: Iterable[str] = (), types: Iterable[str] = ()
    ) -> AsyncGenerator[models.Event, None]:
        """See `Client.events`."""
        watch, coming_back = Watch(after, spaces, types), Return()
        while True:
            lost: DaemonUnavailable | None = None
            try:
                request, start = watch.connecting(), not coming_back.connected
                async with await self.link.open(request, start=start) as stream:
                    if not is_stream(stream.head):
                        Answer(stream.head, await stream.read()).check()
                    async for piece in stream:
                        coming_back.heard()
                        for event in watch.receive(piece):
                            yield event
            except DaemonUnavailable as error:
                lost = error
            await asyncio.sleep(coming_back.pause_s(lost))

    # The daemon

    async def info(self) -> models.Info:
        return await self._send(calls.info())

    async def usage(self) -> list[models.Usage]:
        """What each space uses now."""
        return await self._send(calls.usage_of_all())

    async def doctor(self) -> models.Diagnosis:
        """What this machine can do, and how to mend what it cannot."""
        return await self._send(calls.doctor())

    async def gc(self, *, dry_run: bool = False) -> models.Report:
        """Cleans up: what is over its time, and what belongs to nobody."""
        return await self._send(calls.collect(dry_run))

    async def bases(self) -> list[models.Base]:
        return await self._send(calls.bases())

    async def make_base(
        self, project: Project, *, ref: str | None = None, exclude: Iterable[str] = ()
    ) -> models.Base:
        """Ahead of time, so that the first space of a project is as quick as the others."""
        return await self._send(calls.make_base(project, ref, list(exclude)))

    async def _send(self, call: Call[T]) -> T:
        return call.decode(await self.link.json(call.request))


class AsyncTokens:
    """Tokens for the API on TCP. Only administrators may use this."""

    def __init__(self, link: AsyncLink) -> None:
        self._link = link

    async def create(
        self, scope: str, *, name: str = "", ttl_s: float | None = None
    ) -> models.NewToken:
        """`scope` is `admin`, `label:key=value` or `space:<id>`. The secret is shown once."""
        return await self._send(calls.create_token(scope, name, ttl_s))

    async def list(self) -> list[models.Token]:
        return await self._send(calls.tokens())

    async def revoke(self, token: str) -> None:
        """By id or name; from now on it opens nothing."""
        await self._send(calls.revoke_token(token))

    async def _send(self, call: Call[T]) -> T:
        return call.decode(await self._link.json(call.request))


async def _pause(patience: Patience) -> None:
    await asyncio.sleep(max(0.0, patience.next_at - time.monotonic()))
