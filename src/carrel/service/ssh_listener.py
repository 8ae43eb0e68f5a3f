"""The listener for SSH: whether and where it listens, and the keys that open it.

A key has scopes as a token has, one or more, and reaches the spaces that any of them does. What is
decided about it is decided when somebody comes; when it is removed, its connections end.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
from collections.abc import Sequence

from carrel.domain.access import Caller, Scope
from carrel.domain.errors import (
    CarrelError,
    SpaceInvalid,
    SpaceNotFound,
    SshKeyInvalid,
    SshKeyNotFound,
)
from carrel.domain.ids import new_id
from carrel.domain.ssh import SshArrival, SshBook, SshKeyRecord, SshListening, SshPort, SshSession
from carrel.service.access import require_admin
from carrel.service.journal import Journal
from carrel.service.ssh import SshSessions
from carrel.service.tokens import Tokens

MOST_KEYS = 1000
AGAIN_S = 1.0
"""Until a listener that ended by itself is started again; twice as long after each time."""
LONGEST_S = 60.0


class SshListener:
    def __init__(
        self,
        journal: Journal,
        tokens: Tokens,
        sessions: SshSessions,
        book: SshBook,
        port: SshPort,
    ) -> None:
        self._journal = journal
        self._tokens = tokens
        self._sessions = sessions
        self._book = book
        self._port = port
        self._lock = asyncio.Lock()
        self._problem = ""
        self._again: asyncio.Task[None] | None = None
        self._failures = 0

    # Listening

    async def show(self, caller: Caller) -> SshListening:
        require_admin(caller)
        return await self._show()

    async def _show(self) -> SshListening:
        port = await asyncio.to_thread(self._book.port)
        if not port:
            return SshListening()
        return SshListening(port, await asyncio.to_thread(self._book.host_key), self._problem)

    async def listen(self, caller: Caller, port: int) -> SshListening:
        """On this port, or on one that is free, and the same again with the next daemon. Raises
        `Forbidden`, `PortUnavailable`, `SshUnavailable`."""
        require_admin(caller)
        async with self._lock:
            before = await asyncio.to_thread(self._book.port)
            if self._port.is_open and port in (0, before):
                return await self._show()
            found = await self._open(port or before)
            self._failures = 0
            await asyncio.to_thread(self._book.put_port, found)
        return await self._show()

    async def _open(self, port: int) -> int:
        await asyncio.to_thread(self._sessions.make_ready)
        await asyncio.to_thread(self._book.host_key)
        found = await self._port.open(port, self._ended)
        self._problem = ""
        return found

    async def stop(self, caller: Caller) -> SshListening:
        """Connections that are there go on. Stopping twice is no error."""
        require_admin(caller)
        async with self._lock:
            await asyncio.to_thread(self._book.put_port, 0)
            await self._port.close()
            self._problem = ""
        return await self._show()

    async def take_up(self) -> None:
        """What an earlier daemon had."""
        with contextlib.suppress(CarrelError):
            if await asyncio.to_thread(self._book.port):
                await self._begin_again()

    def _ended(self) -> None:
        """By itself: it was killed, or failed."""
        self._problem = "It has ended, and is started again."
        self._again = asyncio.create_task(self._start_again())

    async def _start_again(self) -> None:
        await asyncio.sleep(min(AGAIN_S * 2 ** min(self._failures, 10), LONGEST_S))
        self._failures += 1
        await self._begin_again()

    async def _begin_again(self) -> None:
        async with self._lock:
            port = await asyncio.to_thread(self._book.port)
            if not port or self._port.is_open:
                return
            try:
                await self._open(port)
            except CarrelError as error:
                # Who asks for the listener is told.
                self._problem = error.message
                self._again = asyncio.create_task(self._start_again())

    async def close(self) -> None:
        """The daemon ends: its successor listens again."""
        if self._again is not None:
            self._again.cancel()
        await self._port.close()

    # Its keys

    async def add(
        self, caller: Caller, text: str, name: str, scopes: Sequence[Scope]
    ) -> SshKeyRecord:
        """Raises `Forbidden`, `SshKeyInvalid`, `SpaceInvalid`."""
        require_admin(caller)
        kind, blob, comment = self._book.read_key(text)
        name = name or comment[:100]
        if not name.isprintable():
            raise SpaceInvalid("A key's name is up to 100 printable characters.")
        if not scopes:
            raise SpaceInvalid(
                "Nobody said what the key is for.", hint="Name spaces or labels, or all of them."
            )
        resolved = tuple(dict.fromkeys([await self._tokens.resolved(one) for one in scopes]))
        async with self._lock:
            keys = list(await asyncio.to_thread(self._book.keys))
            if any(one.blob == blob for one in keys):
                raise SshKeyInvalid(
                    "This key is there already.", hint="Remove it first: carrel ssh-key rm"
                )
            if len(keys) >= MOST_KEYS:
                raise SshKeyInvalid(
                    f"There are {MOST_KEYS} keys.", hint="Remove some: carrel ssh-key rm"
                )
            made = SshKeyRecord(
                key_id=new_id("sk"),
                name=name,
                kind=kind,
                blob=blob,
                fingerprint=_fingerprint(blob),
                scopes=resolved,
                created_at=self._journal.clock(),
            )
            await asyncio.to_thread(self._book.put_keys, [*keys, made])
        return made

    async def list(self, caller: Caller) -> Sequence[SshKeyRecord]:
        require_admin(caller)
        return await asyncio.to_thread(self._book.keys)

    async def remove(self, caller: Caller, word: str) -> SshKeyRecord:
        """By its id, name or fingerprint. Its connections have ended when this returns. Raises
        `Forbidden`, `SshKeyNotFound`."""
        require_admin(caller)
        async with self._lock:
            keys = await asyncio.to_thread(self._book.keys)
            # Names come from whoever gave the key: one may be another key's fingerprint.
            found = next((one for one in keys if word in (one.key_id, one.fingerprint)), None)
            found = found or next((one for one in keys if word == one.name), None)
            if found is None:
                raise SshKeyNotFound(
                    f"There is no key {word[:80]!r}.", hint="`carrel ssh-key ls` lists them."
                )
            await asyncio.to_thread(self._book.put_keys, [one for one in keys if one != found])
        await self._sessions.end_of_key(found.key_id)
        return found

    # Who comes

    async def opens(self, host: str, blob: str) -> bool:
        """Whether this key opens the space that somebody names."""
        found = await self._known(blob)
        if found is None:
            return False
        try:
            await self._sessions.find(callers(found), host)
        except SpaceNotFound:
            return False
        return True

    async def begin(self, arrival: SshArrival, connection: int) -> tuple[SshSession, bool]:
        """Also whether what runs in there may use the SSH agent of who comes. Raises
        `SpaceNotFound`, also for what the key does not open, and what `SshSessions.begin` does."""
        session = await self._begin(arrival, connection)
        return session, self._journal.current(session.space_id).ssh_agent

    async def _begin(self, arrival: SshArrival, connection: int) -> SshSession:
        if not arrival.key:
            return await self._sessions.begin(arrival, connection)
        found = await self._known(arrival.key)
        if found is None:
            raise SpaceNotFound("This key opens nothing.", hint="carrel ssh-key ls")
        session = await self._sessions.begin(
            arrival, connection, callers=callers(found), key=found.key_id
        )
        if await self._known(arrival.key) is None:
            # It was removed meanwhile.
            await self._sessions.end_of_key(found.key_id)
        return session

    async def _known(self, blob: str) -> SshKeyRecord | None:
        keys = await asyncio.to_thread(self._book.keys)
        return next((one for one in keys if one.blob == blob), None)


def callers(key: SshKeyRecord) -> tuple[Caller, ...]:
    """As whom its owner comes: once for each scope."""
    return tuple(Caller(key.key_id, scope) for scope in key.scopes)


def _fingerprint(blob: str) -> str:
    digest = hashlib.sha256(base64.b64decode(blob)).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
