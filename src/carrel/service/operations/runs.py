"""Commands, as the contract has them."""

from __future__ import annotations

import base64
import binascii
import shlex
import signal as signals

from carrel.api.types import runs as types
from carrel.api.types.common import moment
from carrel.domain.access import Caller
from carrel.domain.errors import MessageInvalid, RunNotFound, SpaceNotFound
from carrel.domain.runs import RunRecord
from carrel.domain.runtimes import Command, Exit, Output
from carrel.domain.store import Store
from carrel.domain.systems import CommandPlace
from carrel.service.access import check_untouched, concealed, is_owner
from carrel.service.runs import Inputs, Runs
from carrel.service.spaces import Spaces


class RunOperations:
    def __init__(self, spaces: Spaces, runs: Runs, store: Store, data: str) -> None:
        self._spaces = spaces
        self._runs = runs
        self._store = store
        self._data = data
        self.inputs = Inputs(runs)

    async def find(self, caller: Caller, run: str) -> RunRecord:
        """A run of a space that the caller may see; of another one it is as if it were not."""
        record = await self._runs.get(run)
        try:
            await self._spaces.get(caller, record.space_id)
        except SpaceNotFound:
            hint = "`carrel runs` lists them."
            raise RunNotFound(f"There is no run {run[:40]!r}.", hint=hint) from None
        return record

    async def begin(self, caller: Caller, space: str, new: types.RunBody) -> RunRecord:
        """What it is to read is written in the background: it may read it late, or never."""
        given = _stdin(new)
        found = await self._spaces.existing(caller, space)
        command = Command(
            argv=new.argv,
            env=new.env,
            cwd=new.cwd,
            stdin=given is not None,
            timeout_s=new.timeout_s,
            may_make_room=is_owner(caller),
        )
        place, service = _place(new.place)
        record = await self._runs.start(found.space_id, command, place=place, service=service)
        target = None if given is None else self.inputs.of(record.run_id)
        if target is not None:
            target.push(given)
            target.end()
        return record

    async def begin_attached(
        self, caller: Caller, space: str, new: types.SocketCommand, reader: str
    ) -> RunRecord:
        """For a client that hears all of it, under the name `reader`."""
        found = await self._spaces.existing(caller, space)
        command = Command(
            argv=new.argv,
            env=new.env,
            cwd=new.cwd,
            output=Output.PTY if new.terminal else Output.FILES,
            stdin=new.stdin or new.terminal,
            timeout_s=new.timeout_s,
            pty_size=(new.rows, new.cols),
            reader=reader,
            may_make_room=is_owner(caller),
        )
        place, service = _place(new.place)
        return await self._runs.start(
            found.space_id, command, hangup=new.hangup, place=place, service=service
        )

    async def list(self, caller: Caller, space: str, asked: types.RunListQuery) -> types.RunList:
        found = await self._spaces.get(caller, space)
        records = await self._store.runs(found.space_id, limit=asked.limit)
        return types.RunList(runs=tuple(self.info(caller, self._newest(one)) for one in records))

    async def show(self, caller: Caller, run: str) -> types.RunInfo:
        return self.info(caller, await self.find(caller, run))

    async def wait(self, caller: Caller, run: str, asked: types.WaitQuery) -> types.RunInfo:
        await self.find(caller, run)
        return self.info(caller, await self._runs.wait(run, asked.timeout_s))

    async def signal(self, caller: Caller, run: str, asked: types.SignalBody) -> types.RunInfo:
        record = await self.find(caller, run)
        check_untouched(await self._spaces.get(caller, record.space_id))
        await self._runs.signal(run, signals.Signals[f"SIG{asked.signal}"])
        return self.info(caller, self._newest(record))

    def _newest(self, record: RunRecord) -> RunRecord:
        """A command that runs is known better than it is written down."""
        live = self._runs.live(record.run_id)
        return record if live is None else live.record

    def info(self, caller: Caller, record: RunRecord) -> types.RunInfo:
        return types.RunInfo(
            id=record.run_id,
            space=record.space_id,
            argv=record.argv,
            display_command=record.display or shlex.join(record.argv),
            cwd=record.cwd,
            state=record.state,
            terminal=record.terminal,
            place=record.place,
            service=record.service,
            created_at=moment(record.created_at),
            pid=record.pid,
            exit=None if record.exit is None else _exit(record.exit),
            failure=concealed(caller, self._data, record.failure),
            failure_code=record.failure_code,
        )


def _place(word: str) -> tuple[CommandPlace | None, str]:
    """One of the space's own, or the name of a service."""
    own = not word or word in {*CommandPlace}
    return (CommandPlace(word) if word and own else None), ("" if own else word)


def _exit(ended: Exit) -> types.ExitInfo:
    return types.ExitInfo(
        reason=ended.reason,
        code=ended.code,
        signal=ended.signal,
        started_at=moment(ended.started_at),
        ended_at=moment(ended.ended_at),
        cpu_seconds=ended.cpu_seconds,
        max_rss_bytes=ended.max_rss_bytes,
    )


def _stdin(new: types.RunBody) -> bytes | None:
    if new.stdin is not None and new.stdin_base64 is not None:
        raise MessageInvalid(
            "`stdin` and `stdin_base64` cannot be used together.", hint="Leave one of them out."
        )
    if new.stdin is not None:
        return new.stdin.encode("utf-8", "surrogateescape")
    if new.stdin_base64 is None:
        return None
    try:
        return base64.b64decode(new.stdin_base64, validate=True)
    except (binascii.Error, ValueError):
        raise MessageInvalid("stdin_base64 is no base64.", field="body.stdin_base64") from None
