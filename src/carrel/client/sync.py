"""`Client`: spaces, and all that can be done with them, from Python.

    import carrel

    with carrel.Client() as client, client.space("./project") as space:
        print(space.run(["pytest"]).stdout)

The daemon is found as the `carrel` program finds it, and started when it does not run.
Errors are those of `carrel.errors`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, TypeVar, Unpack

from carrel.client import calls, models
from carrel.client.calls import Call, Project, SpaceOptions
from carrel.client.creating import create
from carrel.client.generating import Requests
from carrel.client.instances import Instances
from carrel.client.link import Link
from carrel.client.places import find_place
from carrel.client.requests import TIMEOUT_S
from carrel.client.spaces import RunHandle, Space
from carrel.client.starting import starter
from carrel.client.watching import watch_events
from carrel.domain.errors import SpaceNotFound

T = TypeVar("T")
OnProgress = Callable[[models.Progress], None]


class Client:
    """To one daemon: of a data folder (`data`; None: as CARREL_URL or CARREL_DATA say, or the
    usual place), on a Unix `socket`, or at a `url` with a `token`. `timeout_s` is how long
    the daemon may say nothing. May be used by several threads."""

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
        self.link = Link(place, timeout_s=timeout_s, start=starter(place, autostart))
        self.tokens = Tokens(self.link)
        self.instances = Instances(self.link)
        self.requests = Requests(self.link)

    def close(self) -> None:
        self.link.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Spaces

    @contextlib.contextmanager
    def space(
        self,
        project: Project = None,
        *,
        keep: bool = False,
        on_progress: OnProgress | None = None,
        **options: Unpack[SpaceOptions],
    ) -> Iterator[Space]:
        """A new space for as long as the context is open; it is removed at the end, with all
        that was changed in it, unless `keep` says otherwise."""
        space = self.create(project, on_progress=on_progress, **options)
        try:
            yield space
        finally:
            if not keep:
                with contextlib.suppress(SpaceNotFound):
                    space.remove(force=True)

    def create(
        self,
        project: Project = None,
        *,
        on_progress: OnProgress | None = None,
        **options: Unpack[SpaceOptions],
    ) -> Space:
        """A new space, which stays until somebody removes it. `project` is a folder, the URL
        of a repository, an archive, or None for an empty tree."""
        content = calls.space_content(project, options)
        made = create(self.link, content, _told(on_progress))
        return Space(self.link, models.decode(made, models.SpaceInfo))

    def get(self, word: str) -> Space:
        """By id, name, or the unique beginning of an id."""
        return Space(self.link, self._send(calls.space(word)))

    def spaces(
        self,
        *,
        states: Iterable[str] = (),
        labels: Mapping[str, str] | None = None,
        name: str = "",
    ) -> Iterator[Space]:
        """Newest first, page by page. Removed ones only when their state is asked for."""
        after = ""
        while True:
            page, after = self._send(calls.spaces(states, labels or {}, name, after))
            yield from (Space(self.link, info) for info in page)
            if not after:
                return

    def undelete(self, word: str) -> Space:
        """A new space with the changes of a removed one, by its id or name."""
        return Space(self.link, self._send(calls.undelete(word)))

    def trash(self) -> list[models.Trashed]:
        """What `undelete` can bring back."""
        return self._send(calls.trash())

    def run(self, run_id: str) -> RunHandle:
        """A command that was started before, by anybody."""
        return RunHandle(self.link, self._send(calls.run(run_id)))

    # What happens

    def events(
        self, *, after: int | None = None, spaces: Iterable[str] = (), types: Iterable[str] = ()
    ) -> Generator[models.Event, None, None]:
        """What happens from now on (or after the event with that number), for ever. A lost
        connection is made again, and no event is missed or repeated. One of type `gap` says
        that some are no longer kept. Who stops early closes it."""
        return watch_events(self.link, after, spaces, types)

    # The daemon

    def info(self) -> models.Info:
        return self._send(calls.info())

    def usage(self) -> list[models.Usage]:
        """What each space uses now."""
        return self._send(calls.usage_of_all())

    def doctor(self) -> models.Diagnosis:
        """What this machine can do, and how to mend what it cannot."""
        return self._send(calls.doctor())

    def gc(self, *, dry_run: bool = False) -> models.Report:
        """Cleans up: what is over its time, and what belongs to nobody."""
        return self._send(calls.collect(dry_run))

    def bases(self) -> list[models.Base]:
        return self._send(calls.bases())

    def make_base(
        self, project: Project, *, ref: str | None = None, exclude: Iterable[str] = ()
    ) -> models.Base:
        """Ahead of time, so that the first space of a project is as quick as the others."""
        return self._send(calls.make_base(project, ref, list(exclude)))

    def _send(self, call: Call[T]) -> T:
        return call.decode(self.link.json(call.request))


class Tokens:
    """Tokens for the API on TCP. Only administrators may use this."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def create(self, scope: str, *, name: str = "", ttl_s: float | None = None) -> models.NewToken:
        """`scope` is `admin`, `label:key=value` or `space:<id>`. The secret is shown once."""
        return self._send(calls.create_token(scope, name, ttl_s))

    def list(self) -> list[models.Token]:
        return self._send(calls.tokens())

    def revoke(self, token: str) -> None:
        """By id or name; from now on it opens nothing."""
        self._send(calls.revoke_token(token))

    def _send(self, call: Call[T]) -> T:
        return call.decode(self._link.json(call.request))


def _told(on_progress: OnProgress | None) -> Callable[[dict[str, Any]], None] | None:
    if on_progress is None:
        return None
    return lambda step: on_progress(models.decode(step, models.Progress))
