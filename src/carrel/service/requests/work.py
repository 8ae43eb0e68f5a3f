"""The steps of a request: its space, the prompt, the turn, the check, the result."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from carrel.domain.access import LOCAL
from carrel.domain.errors import (
    AgentCrashed,
    CarrelError,
    CommandError,
    Forbidden,
    ProjectInUse,
    RunNotFound,
    SpaceNotFound,
    StateConflict,
    error_class,
)
from carrel.domain.ids import new_id
from carrel.domain.pauses import pauses
from carrel.domain.projects import OnProgress, Progress, Project, ProjectKind
from carrel.domain.requests import (
    WORKSPACE,
    Checked,
    Collected,
    Failure,
    Generate,
    Policy,
    Request,
    RequestState,
    Result,
    Workspace,
)
from carrel.domain.runs import RunRecord, RunState, Stream
from carrel.domain.runtimes import Command, ExitReason, Network
from carrel.domain.spaces import Retention, Space, SpaceRequest, SpaceState
from carrel.domain.store import Forget
from carrel.domain.trees import DIRECT
from carrel.domain.turns import Turn, TurnRequest, TurnState
from carrel.lifecycle.table import LIVE
from carrel.service.journal import printable
from carrel.service.requests.book import LiveRequest, RequestBook, RequestParts, parted, path_of
from carrel.service.requests.retention import series_lock

FOREVER = Retention(ttl_s=0.0, idle_s=0.0, keep_s=0.0, discard=True)
"""What becomes of a workspace is decided here, and not by its age."""


def wants_content(asked: Generate) -> bool:
    if asked.content is not None:
        return asked.content
    return asked.keeping.policy is Policy.EPHEMERAL and not asked.workspace_path


def space_request(parts: RequestParts, request: Request) -> SpaceRequest:
    """Blocking. Raises `ProjectError`s for a folder that cannot be worked in."""
    asked = request.asked
    place = ""
    if asked.workspace_path:
        taken = [space.place for space in parts.journal.all() if space.place]
        place = parts.folders.check(asked.workspace_path, taken)
    return SpaceRequest(
        project=asked.project or Project(ProjectKind.EMPTY),
        place=place,
        named=_named(asked.workspace_path, place),
        space_id=request.space_id,
        driver=DIRECT if place else "auto",
        tier=asked.tier or parts.rules.tier,
        limits=asked.limits,
        runtime=asked.runtime,
        network=asked.network or Network.NONE,
        network_asked=asked.network is not None,
        labels={**asked.labels, WORKSPACE: request.key},
        env=asked.env,
        mcp=asked.mcp,
        show=asked.also_read,
        retention=FOREVER,
        description=asked.instructions[:200].replace("\0", ""),
        agent=asked.frontend,
        transient=True,
        guest=request.guest,
        realm=request.realm,
        account=request.realm,
    )


def _named(path: str, place: str) -> str:
    """As its caller writes it, where that is another way to the place."""
    named = path.rstrip("/")
    return named if named != place else ""


async def wanted_space(parts: RequestParts, book: RequestBook, request: Request) -> SpaceRequest:
    """A folder in which only a request that has ended is still at home is free: that one's space
    goes now, and not when its client says so."""
    if not request.asked.workspace_path:
        # It looks at no folder, and threads would change the order of those who ask.
        return space_request(parts, request)
    while True:
        try:
            return await asyncio.to_thread(space_request, parts, request)
        except ProjectInUse as error:
            if not await _leave(parts, book, str(error.details["folder"])):
                raise


async def _leave(parts: RequestParts, book: RequestBook, folder: str) -> bool:
    for live in book.all():
        space = parts.journal.get(live.request.space_id)
        if live.request.ended and space is not None and space.place == folder:
            with contextlib.suppress(SpaceNotFound):
                await parts.spaces.remove(LOCAL, space.space_id, force=True, grace_s=0.0)
            return True
    # It may have gone by itself since the folder was looked at.
    return all(space.place != folder for space in parts.journal.all())


def telling(book: RequestBook, live: LiveRequest) -> OnProgress:
    """Tells what is being done while a workspace is made. Its listener is called in a worker
    thread, and often."""
    loop = asyncio.get_running_loop()

    def heard(progress: Progress) -> None:
        said = f"{progress.stage}: {progress.done}" + (
            f" of {progress.total}" if progress.total else ""
        )
        if said != live.making:
            live.making = said
            loop.call_soon_threadsafe(book.ring, live.key)

    return heard


# What the agent of a request is told, and what of its answer is meant for its client.

MISSING = "NEEDS RESEARCH:"
"""The line of an answer after which stands what the agent would have to know."""
MOST_MISSING, MISSING_CHARACTERS = 50, 1000
RULES = f"""\
You work alone in the current folder, which was made for this task: write the files there, \
directly, in no folder of your own around them. Nothing outside of it can be written. Do not \
describe files that you have not written: what counts is what is on the disk when you are done.
If you must know something that is neither in the folder nor in what you were given, and that \
you cannot find out, make what can be made without it, and end your last message with the line \
`{MISSING}` and below it one line for each thing that is missing."""


def prompt_of(asked: Generate) -> str:
    parts = [asked.instructions]
    if asked.architecture:
        parts.append(f"The architecture that is wanted:\n{asked.architecture}")
    if asked.context:
        parts.append(f"What is known:\n{asked.context}")
    if asked.also_read:
        parts.append("\n".join(["You may also read:", *asked.also_read]))
    return "\n\n".join(parts)


def missing_in(said: str) -> tuple[str, ...]:
    """What the last message of an agent says is missing."""
    before, found, after = said.rpartition(MISSING)
    if not found or (before and not before.endswith("\n")):
        return ()
    lines = (line.strip().lstrip("-*• ").strip() for line in after.splitlines())
    return tuple(line[:MISSING_CHARACTERS] for line in lines if line)[:MOST_MISSING]


# The command that is given with a request, and how it ended.

TAIL_BYTES = 16_000


async def run(parts: RequestParts, request: Request, run_id: str) -> Checked | None:
    """To its end, whoever began it. What came of it, when it cannot even be started."""
    check = request.asked.check
    assert check is not None
    try:
        await parts.runs.get(run_id)
    except RunNotFound:
        command = Command(check.argv, timeout_s=check.timeout_s)
        try:
            await parts.runs.start(request.space_id, command, run_id=run_id)
        except CommandError as error:
            return Checked(False, None, error.code, error.message)
    await parts.runs.wait(run_id)
    return None


async def outcome(parts: RequestParts, run_id: str) -> Checked:
    record = await parts.runs.get(run_id)
    ended = record.exit
    if record.state is RunState.FAILED or ended is None:
        return Checked(False, None, record.failure_code or "lost", record.failure)
    output = await _tail(parts, record)
    passed = ended.reason is ExitReason.EXITED and ended.code == 0
    seconds = round(ended.ended_at - ended.started_at, 3)
    return Checked(passed, ended.code, str(ended.reason), output, seconds)


async def _tail(parts: RequestParts, record: RunRecord) -> str:
    """The end of what it wrote, of both streams."""
    folder = parts.open_spaces.folder(record.space_id)
    found = b""
    for stream in (Stream.STDOUT, Stream.STDERR):
        with contextlib.suppress(CarrelError, OSError):
            size = await asyncio.to_thread(parts.recordings.size, folder, record.run_id, stream)
            first = max(0, size - TAIL_BYTES)
            piece = await parts.runs.read(record, stream, first, TAIL_BYTES)
            found += piece.data
    return found[-TAIL_BYTES:].decode(errors="replace")


# One request from its turn to its end. Where a daemon was killed the record says where to go on:
# every step looks first at what of it is done.

MOST_ATTEMPTS = 5
"""A daemon that was killed each time is no reason to go on for ever."""
SUMMARY_CHARACTERS = 20_000
UNREAD_BYTES = 256 << 20
"""Of outcomes that one caller has not read yet."""
LOOK_S, LOOK_EVERY = 2.0, 20.0
"""Between two looks at what an agent wrote; and at least so many times as long as one took."""
MOST_SEEN, MOST_CHARACTERS = 1000, 1000
"""Files of one request that are told of as they appear, and letters of the path of each."""
MOST_NOTED = 200
"""Files of one request that the daemon's log lists as they appear, and again at its end: who makes
more has them in the result, and others have a place in the log too."""
PLACES = "places"
"""The lock of all folders that callers name."""
_log = logging.getLogger("carrel")


class RequestWorker:
    def __init__(self, parts: RequestParts, book: RequestBook) -> None:
        self._parts = parts
        self._book = book

    async def work(self, live: LiveRequest) -> None:
        """Until it has ended. Raises nothing but its own cancelling, and what the store raises
        when even the failure cannot be written down."""
        try:
            while not live.request.ended:
                await self._step(live)
        except CarrelError as error:
            await self.fail(live, error)
        except Exception as error:
            if not live.cancelling:
                _log.exception("the request %s failed", live.key)
            await self.fail(live, CarrelError(f"{type(error).__name__}: {error}"))

    async def _step(self, live: LiveRequest) -> None:
        match live.request.state:
            case RequestState.QUEUED:
                await self._accept(live)
            case RequestState.MAKING:
                await self._make(live)
            case RequestState.WORKING:
                await self._have_it_made(live)
            case RequestState.CHECKING:
                await self._check(live)
            case RequestState.COLLECTING:
                await self._collect(live)

    async def fail(self, live: LiveRequest, error: CarrelError) -> None:
        if live.cancelling:
            # By that: whoever cancels it writes it down.
            return
        step = str(live.request.state)
        failure = Failure(error.code, error.message, step, error.passing, error.hint)
        await self._end(live, RequestState.FAILED, failure=failure)

    # The workspace

    async def _accept(self, live: LiveRequest) -> None:
        """Its turn has come. Where it will be is known before anything is made."""
        request = live.request
        await self._check_asker(request)
        if request.attempts >= MOST_ATTEMPTS:
            raise AgentCrashed(
                f"The daemon ended during each of {request.attempts} attempts.",
                hint="Read the daemon's log.",
            )
        earlier = self._parts.log.last(request.space_id) if request.space_id else 0
        await self._book.move(
            live,
            RequestState.MAKING,
            "making the workspace",
            space_id=new_id("sp"),
            attempts=request.attempts + 1,
            offset=request.offset + earlier,
        )

    async def _check_asker(self, request: Request) -> None:
        """What a token has left in the line does not begin when it was revoked, or its time is
        over. `Forbidden`."""
        if not await self._parts.tokens.reaches(request.caller, request.space_id):
            raise Forbidden(
                "The token that asked for it opens nothing any more.",
                hint="Ask again with another token.",
            )

    async def _make(self, live: LiveRequest) -> None:
        request = live.request
        async with self._parts.shared.locks.shared(request.space_id):
            # One that an earlier daemon left half made is cleared first.
            space = self._parts.journal.get(request.space_id)
        if space is None:
            if await self._was_begun(request):
                # The daemon ended while it was made, and nothing of it is left.
                await self._book.change(live, state=RequestState.QUEUED)
                return
            await self._create(live)
        elif space.state not in LIVE:
            raise StateConflict(f"{space.name} is {space.state}.", state=str(space.state))
        note(live, f"{request.asked.frontend} in {path_of(self._parts, request)}")
        for name, text in request.asked.context_files.items():
            await self._parts.context.put(LOCAL, request.space_id, name, text.encode())
        await self._book.move(
            live,
            RequestState.WORKING,
            f"{request.asked.frontend} begins",
            workspace=Workspace.THERE,
        )

    async def _create(self, live: LiveRequest) -> None:
        async with contextlib.AsyncExitStack() as held:
            if live.request.asked.workspace_path:
                # Whether somebody works there is looked at before it is known that we do.
                await held.enter_async_context(self._parts.shared.locks.alone(PLACES))
            wanted = await wanted_space(self._parts, self._book, live.request)
            await self._parts.spaces.create(LOCAL, wanted, telling(self._book, live))

    async def _was_begun(self, request: Request) -> bool:
        """By an earlier daemon: of what this one has not begun there is no message."""
        return request.attempts > 0 and self._parts.log.last(request.space_id) > 1

    # The agent

    async def _have_it_made(self, live: LiveRequest) -> None:
        request = live.request
        if not request.run_id:
            turn = await self._begun(request) or await self._begin(request)
            await self._book.change(live, run_id=turn.run_id)
        watching = asyncio.create_task(self._watch_files(live))
        try:
            turn = await self._parts.turns.wait(LOCAL, live.request.run_id)
        finally:
            watching.cancel()
        if turn.state is TurnState.ERROR and await self._never_ran(request, turn.run_id):
            attempts = request.attempts + 1
            await self._book.change(live, run_id="", attempts=attempts)
            turn = await self._begin(request)
            await self._book.change(live, run_id=turn.run_id)
            return
        await self._left_nothing(request.space_id, turn.run_id)
        if turn.result is None or turn.state is not TurnState.COMPLETE:
            error = turn.result.error if turn.result is not None else None
            raise (
                _turn_failed(error.code, error.message)
                if error
                else _turn_failed(AgentCrashed.code, "The agent ended without a word.")
            )
        if request.asked.check is not None:
            await self._book.move(live, RequestState.CHECKING, "checking")
        else:
            await self._book.move(live, RequestState.COLLECTING, "looking at what changed")

    async def _watch_files(self, live: LiveRequest) -> None:
        """Until it is cancelled. A look at a large folder takes its time, and has a small part of
        all there is."""
        pause_s = LOOK_S
        while True:
            await asyncio.sleep(pause_s)
            began = time.monotonic()
            with contextlib.suppress(CarrelError):
                self._appeared(live, await self._changed(live.request, MOST_SEEN))
            pause_s = max(LOOK_S, LOOK_EVERY * (time.monotonic() - began))

    def _appeared(self, live: LiveRequest, collected: Collected) -> None:
        """Notes those that nobody has heard of."""
        known = set(live.files)
        for file in collected.files[:MOST_SEEN]:
            new = file.change != "deleted" and file.path not in known
            if new and len(live.files) < MOST_SEEN and len(file.path) <= MOST_CHARACTERS:
                live.files.append(file.path)
                if len(live.files) <= MOST_NOTED:
                    note(live, f"{file.change} {printable(file.path)}")
        self._book.ring(live.key)

    async def _changed(self, request: Request, most: int, content_bytes: int = 0) -> Collected:
        opened = await self._parts.open_spaces.of(self._space(request.space_id))
        await self._parts.open_spaces.ensure(opened)
        return await asyncio.to_thread(
            self._parts.collecting.collect,
            *(opened.driver, opened.tree),
            most=most,
            content_bytes=content_bytes,
        )

    async def _begun(self, request: Request) -> Turn | None:
        """By an earlier daemon, which could not write it down here any more."""
        turns = await self._parts.store.turns(request.space_id, limit=1)
        return turns[0] if turns else None

    async def _never_ran(self, request: Request, run_id: str) -> bool:
        """A daemon ended between writing it down and doing it, and it is worth another try."""
        if request.attempts >= MOST_ATTEMPTS:
            return False
        try:
            return (await self._parts.runs.get(run_id)).state is RunState.FAILED
        except RunNotFound:
            return True

    async def _begin(self, request: Request) -> Turn:
        await self._check_asker(request)
        asked = request.asked
        wanted = TurnRequest(
            frontend=asked.frontend,
            prompt=prompt_of(asked),
            model=asked.model,
            permission=asked.permission,
            system_prompt=RULES,
            timeout_s=asked.timeout_s or self._parts.rules.timeout_s,
            # Some agents are told by it where their models are.
            env=asked.env,
        )
        return await self._parts.turns.start(LOCAL, request.space_id, wanted)

    async def _left_nothing(self, space_id: str, run_id: str) -> None:
        """What an agent has left running would go on writing while its work is looked at."""
        opened = await self._parts.open_spaces.of(self._space(space_id))
        await opened.runtime.kill(opened.sandbox, run_id)

    def _space(self, space_id: str) -> Space:
        space = self._parts.journal.staying(space_id)
        if space is None:
            raise SpaceNotFound(f"The workspace {space_id} was removed.", hint="Ask again.")
        return space

    # The check

    async def _check(self, live: LiveRequest) -> None:
        request = live.request
        if not request.check_run_id:
            await self._book.change(live, check_run_id=new_id("ru"))
        run_id = live.request.check_run_id
        checked = await run(self._parts, request, run_id)
        if checked is None and await self._never_ran(request, run_id):
            await self._book.change(live, check_run_id="", attempts=request.attempts + 1)
            return
        if checked is None:
            await self._left_nothing(request.space_id, run_id)
            checked = await outcome(self._parts, run_id)
        said = "looking at what changed"
        await self._book.move(live, RequestState.COLLECTING, said, checked=checked)

    # The result

    async def _collect(self, live: LiveRequest) -> None:
        request = live.request
        rules = self._parts.rules
        content_bytes = rules.content_bytes if wants_content(request.asked) else 0
        collected = await self._changed(request, rules.most_files, content_bytes)
        self._appeared(live, collected)
        turn = await self._parts.turns.get(LOCAL, request.run_id)
        said = turn.result.final_output if turn.result is not None else ""
        missing = missing_in(said)
        passed = request.checked is None or request.checked.passed
        result = Result(
            complete=bool(collected.total) and not missing and passed,
            summary=said[:SUMMARY_CHARACTERS],
            files=collected.files,
            total=collected.total,
            needs_research=missing,
            check=request.checked,
            usage=turn.usage,
        )
        if request.asked.keeping.policy is not Policy.VERSIONED:
            await self._end(live, RequestState.DONE, result=result)
            return
        async with self._parts.shared.locks.alone(series_lock(request)):
            version = await self._next_version(request)
            await self._end(live, RequestState.DONE, result=result, version=version)

    async def _next_version(self, request: Request) -> int:
        series = request.asked.keeping.series
        return await self._parts.store.last_version(request.caller, series) + 1

    async def _end(self, live: LiveRequest, state: RequestState, **outcome: object) -> None:
        """What its client hears last comes after all that it can hear of the space."""
        await self._parts.log.settled()
        request = live.request
        space_id = request.space_id
        there = self._parts.journal.get(space_id) if space_id else None
        now = self._book.clock()
        details, short = parted(request, outcome)
        changes = {
            **short,
            "ended_at": now,
            "retained_until": _until(request, state, there, now),
            "seq": request.offset + (self._parts.log.last(space_id) if space_id else 0) + 1,
            "workspace": _workspace(request, there),
        }
        for pause_s in pauses():
            try:
                await self._book.move(live, state, "", details, *self._bounded(live), **changes)
                note_end(live, details.result)
                return
            except CarrelError as error:
                # However long the disk is full: an outcome is not lost.
                _log.warning("the end of the request %s is not written: %s", live.key, error)
                if live.cancelling:
                    await self._halt(live)
                await asyncio.sleep(pause_s)

    def _bounded(self, live: LiveRequest) -> tuple[Forget, ...]:
        """Who never reads what it asked for fills no disk with it; the owner's own is not counted.
        The files are in the workspace as long as that is kept."""
        caller = live.request.caller
        if caller == LOCAL.name:
            return ()
        return (Forget(details_of=caller, details_bytes=UNREAD_BYTES, details_delivered=False),)

    async def _halt(self, live: LiveRequest) -> None:
        """What runs for one that was cancelled may be what fills the disk."""
        space = self._parts.journal.get(live.request.space_id)
        if space is None:
            return
        try:
            opened = await self._parts.open_spaces.of(space)
            await opened.stop(0.0)
        except CarrelError as error:
            _log.warning("what runs for the request %s goes on: %s", live.key, error)

    async def cancel(self, live: LiveRequest, failure: Failure) -> bool:
        """Whether it had not ended. What it made goes with it; that is the keeper's."""
        await self._end(live, RequestState.CANCELLED, failure=failure)
        return live.request.failure is failure


def note(live: LiveRequest, said: str) -> None:
    """In the daemon's log."""
    _log.info("request %s (%s): %s", live.request.request_id, live.key, said)


def note_end(live: LiveRequest, result: Result | None) -> None:
    if result is not None:
        for file in result.files[:MOST_NOTED]:
            lines = "" if file.lines is None else f", {file.lines} lines"
            path = printable(file.path[:MOST_CHARACTERS])
            note(live, f"{file.change} {path}, {file.bytes} bytes{lines}")
        note(live, f"{'complete' if result.complete else 'not complete'}: {result.total} files")
    elif failure := live.request.failure:
        note(live, f"{live.request.state}: {printable(failure.message)} ({failure.code})")


def _turn_failed(code: str, message: str) -> CarrelError:
    """As the turn says it."""
    return error_class(code)(message, hint="The agent's output is in the events of the request.")


def _until(request: Request, state: RequestState, space: Space | None, now: float) -> float | None:
    keeping = request.asked.keeping
    kept = keeping.policy is Policy.RETAIN and state is not RequestState.CANCELLED
    return now + keeping.seconds if kept and space is not None else None


def _workspace(request: Request, space: Space | None) -> Workspace:
    if space is not None and space.state is not SpaceState.REMOVED:
        return Workspace.THERE
    return Workspace.NONE if request.workspace is Workspace.NONE else Workspace.GONE
