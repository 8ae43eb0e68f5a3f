"""`AsyncClient`: spaces, and all that can be done with them, from Python.

    async with carrel.AsyncClient() as client, client.space("./project") as space:
        result = await space.run(["pytest"])

The daemon is found as the `carrel` program finds it, and started when it does not run.
Errors are those of `carrel.errors`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Unpack

from carrel.api.types.agents import TurnOptions
from carrel.api.types.landings import LandOptions
from carrel.api.types.spaces import SpaceOptions
from carrel.client import models
from carrel.client.address import find_address, starter
from carrel.client.aio_events import create, watch_events
from carrel.client.aio_images import AsyncImages
from carrel.client.aio_instances import AsyncInstances
from carrel.client.aio_link import AsyncLink, shielded
from carrel.client.aio_requests import AsyncRequests
from carrel.client.aio_spaces import AsyncRunHandle, AsyncSpace
from carrel.client.exchange import waits
from carrel.client.http import TIMEOUT_S, asking, operation
from carrel.client.options import Project, space_content, turn_content
from carrel.client.projects import describe
from carrel.domain.errors import SpaceNotFound
from carrel.domain.landing import CHECK_S

PAGE = 200
OnProgress = Callable[[models.Progress], None]


class AsyncClient:
    """To one daemon: of a data folder (`data`; None: as CARREL_URL or CARREL_DATA say, or the
    usual place), on a Unix `socket`, or at a `url` with a `token`. `timeout_s` is how long
    the daemon may say nothing. May be used by several threads, or tasks of one event loop."""

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
        place = find_address(
            data=os.fspath(data or ""),
            socket=os.fspath(socket or ""),
            url=url or "",
            token=token or "",
        )
        self.link = AsyncLink(place, timeout_s=timeout_s, start=starter(place, autostart))
        self.tokens = AsyncTokens(self.link)
        self.ssh = AsyncSsh(self.link)
        self.images = AsyncImages(self.link)
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
                    await shielded(space.remove(force=True))

    async def create(
        self,
        project: Project = None,
        *,
        on_progress: OnProgress | None = None,
        **options: Unpack[SpaceOptions],
    ) -> AsyncSpace:
        """A new space, which stays until somebody removes it. `project` is a folder, the URL
        of a repository, an archive, or None for an empty tree."""
        content = space_content(project, options)
        made = await create(self.link, content, _told(on_progress))
        return AsyncSpace(self.link, models.decode(made, models.SpaceInfo))

    async def get(self, word: str) -> AsyncSpace:
        """By id, name, or the unique beginning of an id."""
        info = await self.link.call(models.SpaceInfo, "spaces.show", word)
        return AsyncSpace(self.link, info)

    async def spaces(
        self,
        *,
        states: Iterable[str] = (),
        labels: Mapping[str, str] | None = None,
        name: str = "",
    ) -> AsyncIterator[AsyncSpace]:
        """Newest first, page by page. Removed ones only when their state is asked for."""
        query: list[tuple[str, object]] = [("limit", PAGE), ("name", name or None)]
        query += [("state", state) for state in states]
        query += [("label", f"{key}={value}") for key, value in (labels or {}).items()]
        after = None
        while True:
            request = operation("spaces.list", query=[*query, ("after", after)])
            page = await self.link.json(request)
            for info in models.decode(page["spaces"], list[models.SpaceInfo]):
                yield AsyncSpace(self.link, info)
            after = page.get("next")
            if not after:
                return

    async def undelete(self, word: str) -> AsyncSpace:
        """A new space with the changes of a removed one, by its id or name."""
        info = await self.link.call(models.SpaceInfo, "trash.restore", word)
        return AsyncSpace(self.link, info)

    async def trash(self) -> list[models.Trashed]:
        """What `undelete` can bring back."""
        return await self.link.call(list[models.Trashed], "trash.list", member="trash")

    async def landings(self) -> list[models.Landing]:
        """The newest first."""
        return await self.link.call(list[models.Landing], "landings.list", member="landings")

    async def land(
        self, spaces: Sequence[str], **options: Unpack[LandOptions]
    ) -> list[models.QueueEntry]:
        """Puts spaces in line for a branch, `carrel/queue` if none is named: each is merged on the
        result of the one before, checked, and landed or returned with the reason, unattended."""
        content = {**options, "spaces": list(spaces)}
        return await self.link.call(
            list[models.QueueEntry], "queue.add", member="entries", content=content
        )

    async def queue(self) -> list[models.QueueEntry]:
        """What is in line, in its order, and then what has ended, the newest first."""
        return await self.link.call(list[models.QueueEntry], "queue.list", member="entries")

    async def cancel_landing(self, entry: str) -> models.QueueEntry:
        """Takes one out of the line. Raises `QueueEntryNotFound`, `StateConflict`."""
        return await self.link.call(models.QueueEntry, "queue.cancel", entry)

    async def undo(self, landing: str = "") -> models.Landing:
        """Takes back a landing: the last one, or the one with this id. Raises `NotUndoable`."""
        content = {"landing": landing}
        return await self.link.call(models.Landing, "landings.undo", content=content)

    async def race(
        self,
        project: Project,
        prompt: str,
        agents: Sequence[str],
        *,
        count: int = 1,
        check: str = "",
        check_s: float = CHECK_S,
        wait: bool = True,
        space: SpaceOptions | None = None,
        turn: TurnOptions | None = None,
    ) -> models.Race:
        """Gives the same task to several agents, each in a space of its own. With `wait` until all
        have ended, and the command `check` has run in each space; the spaces stay. Raises what
        making a space and starting a turn raise, and then made nothing."""
        content = {
            **{"agents": list(agents), "count": count, "check": check, "check_s": check_s},
            "space": space_content(project, space or {}),
            "turn": turn_content(prompt, turn or {}),
        }
        made = await self.link.call(models.Race, "races.create", content=content)
        return await self.wait_for_race(made.id) if wait else made

    async def wait_for_race(self, race: str) -> models.Race:
        """When all have ended. Checks that nobody has waited for run now."""
        for wait_s in waits(None):
            query = [("wait_s", wait_s)]
            if (await self.link.call(models.Race, "races.check", race, query=query)).ended:
                break
        return await self.show_race(race)

    async def show_race(self, race: str) -> models.Race:
        """How all stand now. Raises `RaceNotFound`."""
        return await self.link.call(models.Race, "races.show", race)

    async def run(self, run_id: str) -> AsyncRunHandle:
        """A command that was started before, by anybody."""
        info = await self.link.call(models.RunInfo, "runs.show", run_id)
        return AsyncRunHandle(self.link, info)

    # What happens

    def events(
        self, *, after: int | None = None, spaces: Iterable[str] = (), types: Iterable[str] = ()
    ) -> AsyncGenerator[models.Event, None]:
        """What happens from now on (or after the event with that number), for ever. A lost
        connection is made again, and no event is missed or repeated. One of type `gap` says
        that some are no longer kept. Who stops early closes it."""
        return watch_events(self.link, after, spaces, types)

    # The daemon

    async def info(self) -> models.Info:
        return models.decode(await self.link.json(asking("/v1/info")), models.Info)

    async def usage(self) -> list[models.Usage]:
        """What each space uses now."""
        return await self.link.call(list[models.Usage], "spaces.usage_of_all", member="usage")

    async def ps(self) -> list[models.Ps]:
        """What is at work in each space that is ready or running."""
        return await self.link.call(list[models.Ps], "ps.list", member="spaces")

    async def doctor(self) -> models.Diagnosis:
        """What this machine can do, and how to mend what it cannot."""
        return await self.link.call(models.Diagnosis, "cleanup.examine")

    async def df(self) -> models.DiskReport:
        """What uses the daemon's disk."""
        return await self.link.call(models.DiskReport, "cleanup.disk_use")

    async def gc(self, *, dry_run: bool = False, bases: bool = False) -> models.Report:
        """Cleans up: what is over its time, and what belongs to nobody; with `bases` every base
        that no space uses."""
        content = {"dry_run": dry_run, "bases": bases}
        return await self.link.call(models.Report, "cleanup.collect", content=content)

    async def bases(self) -> list[models.Base]:
        return await self.link.call(list[models.Base], "bases.list", member="bases")

    async def make_base(
        self, project: Project, *, ref: str | None = None, exclude: Iterable[str] = ()
    ) -> models.Base:
        """Ahead of time, so that the first space of a project is as quick as the others."""
        content = {"project": describe(project, ref), "exclude": list(exclude)}
        return await self.link.call(models.Base, "bases.build", content=content)


class AsyncTokens:
    """Tokens for the API on TCP. Only administrators may use this."""

    def __init__(self, link: AsyncLink) -> None:
        self._link = link

    async def create(
        self, scope: str, *, name: str = "", ttl_s: float | None = None
    ) -> models.TokenWithSecret:
        """`scope` is `admin`, `label:key=value` or `space:<id>`. The secret is shown once."""
        content = {"scope": scope, "name": name, "ttl_s": ttl_s}
        return await self._link.call(models.TokenWithSecret, "tokens.create", content=content)

    async def list(self) -> list[models.Token]:
        return await self._link.call(list[models.Token], "tokens.list", member="tokens")

    async def revoke(self, token: str) -> None:
        """By id or name; from now on it opens nothing."""
        await self._link.json(operation("tokens.revoke", token))


class AsyncSsh:
    """The listener for SSH, and the keys that open it. Only administrators may use this."""

    def __init__(self, link: AsyncLink) -> None:
        self._link = link

    async def listener(self) -> models.SshListener:
        return await self._link.call(models.SshListener, "ssh.listener")

    async def listen(self, port: int = 0) -> models.SshListener:
        """On a port of the loopback; 0: one that is free. Raises `PortUnavailable`."""
        return await self._link.call(models.SshListener, "ssh.listen", content={"port": port})

    async def stop_listening(self) -> models.SshListener:
        """Connections that are there go on."""
        return await self._link.call(models.SshListener, "ssh.stop_listening")

    async def keys(self) -> list[models.SshKey]:
        return await self._link.call(list[models.SshKey], "ssh_keys.list", member="keys")

    async def add_key(self, key: str, *scopes: str, name: str = "") -> models.SshKey:
        """`key` is the public half, as in OpenSSH's files. `scopes` is what it opens: `admin` for
        all spaces, `label:key=value`, `space:<id>`. Raises `SshKeyInvalid`."""
        content = {"key": key, "scopes": list(scopes), "name": name}
        return await self._link.call(models.SshKey, "ssh_keys.add", content=content)

    async def remove_key(self, key: str) -> models.SshKey:
        """By id, name or fingerprint. Its connections have ended when this returns."""
        return await self._link.call(models.SshKey, "ssh_keys.remove", key)


def _told(on_progress: OnProgress | None) -> Callable[[dict[str, Any]], None] | None:
    if on_progress is None:
        return None
    return lambda step: on_progress(models.decode(step, models.Progress))
