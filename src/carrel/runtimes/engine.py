"""What all runtimes on this machine share: running, taking up, signalling, stopping.

A runtime says how a command is confined (`Confinement`); the engine does the rest through
the launcher, and tells of limits that were hit.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from carrel.domain.errors import (
    LauncherUnavailable,
    RunNotFound,
    SandboxUnavailable,
    WarmUnavailable,
)
from carrel.domain.ids import is_id
from carrel.domain.launching import LauncherPort
from carrel.domain.limits import ResourceUsage
from carrel.domain.runtimes import (
    Command,
    LimitHit,
    LimitsChanged,
    Listening,
    LocalRun,
    Sandbox,
    SandboxSpec,
    Zygote,
)
from carrel.domain.trees import TreeMount
from carrel.linux.reserve import free_room
from carrel.runtimes.limits.disk_watch import Remembered
from carrel.runtimes.limits.enforcement import Enforcement
from carrel.runtimes.limits.watch import PAUSE_S, Inhabitants, LimitWatch
from carrel.runtimes.ports import SandboxPorts
from carrel.runtimes.recordings import Readers
from carrel.runtimes.requests import (
    Confinement,
    LauncherRequests,
    as_error,
    check_command,
    zygote_request,
)
from carrel.runtimes.runs import (
    Links,
    LiveRun,
    RunStreams,
    cannot_write,
    checked_id,
    found_streams,
    make_folder,
    remove_folder,
)
from carrel.runtimes.sandbox import SandboxFolders

ANSWER_S = 30.0
"""The launcher answers within its own bounds; only one that hangs takes longer."""
ZYGOTE_S = 80.0
"""The launcher has its own bound for a warm process to load its modules, which is less."""
STOP_MARGIN_S = 20.0
"""Over the grace: killing and reaping have their own bounds in the launcher."""
ENDING_TRIES = 5
"""A sandbox that is just ending from idleness is started anew; more often is a fault."""

LINGER_S = 10.0
"""How long an idle sandbox keeps its namespaces: the next command of a session finds it warm."""

if TYPE_CHECKING:
    from carrel.launcher import messages

OnEvent = Callable[[LimitHit | LimitsChanged], None]


class Engine:
    def __init__(
        self,
        runtime: str,
        launcher: LauncherPort,
        enforcement: Enforcement,
        on_event: OnEvent,
        linger_s: float = LINGER_S,
        readers: Readers | None = None,
    ) -> None:
        self._runtime = runtime
        self._launcher = launcher
        self._enforcement = enforcement
        self._on_event = on_event
        self._readers = readers or Readers(launcher)
        self._requests = LauncherRequests(enforcement, self._readers, linger_s)
        self.ports = SandboxPorts(launcher, self._networked)
        self._watches: dict[str, LimitWatch] = {}
        self._remembered: dict[str, Remembered] = {}
        """Of sandboxes that are stopped, and near their disk limit or above it; and of new ones."""
        self._warm: set[str] = set()
        self._warming: dict[str, asyncio.Task[None]] = {}
        self._begun: dict[str, asyncio.Task[None]] = {}
        """Sandboxes that are set up while their trees are still being made."""
        self._ending: set[asyncio.Task[None]] = set()
        self._stirring: asyncio.Future[None] | None = None

    async def _ask(
        self,
        op: str,
        fields: Mapping[str, object],
        descriptors: list[int],
        timeout_s: float = ANSWER_S,
    ) -> tuple[dict[str, Any], list[int]]:
        """Raises what the launcher says went wrong."""
        reply, received = await self._launcher.ask(op, fields, descriptors, timeout_s)
        if reply.get("problem") is not None:
            raise as_error(reply["problem"])
        return reply, received

    # Starting

    def prepare(self, spec: SandboxSpec) -> Sandbox:
        """Folders and groups; no process."""
        if not is_id(spec.sandbox_id):
            raise SandboxUnavailable(f"{spec.sandbox_id!r} is no id of a sandbox.")
        folders = SandboxFolders(spec.folder)
        folders.make(spec.owner, spec.home_files, spec.home_links)
        folders.put_carrel(spec.carrel)
        folders.put_shells(spec.shells)
        support = self._enforcement.put_in_force(spec)
        return Sandbox(self._runtime, spec, support)

    # Running

    async def run(self, sandbox: Sandbox, command: Command, confinement: Confinement) -> LiveRun:
        check_command(command)
        if command.warm and confinement.hold is None:
            raise WarmUnavailable(f"{self._runtime} forks no commands.", hint="Start it cold.")
        run_id = checked_id(command)
        folder = SandboxFolders(sandbox.spec.folder).run(run_id)
        streams = make_folder(folder, sandbox, command)
        try:
            return await self._launch(sandbox, command, run_id, streams, confinement)
        except (asyncio.CancelledError, LauncherUnavailable):
            streams.close_ours()
            self._give_up(run_id, folder)
            raise
        except BaseException:
            streams.close_ours()
            remove_folder(folder)
            raise
        finally:
            streams.close_given()

    def _give_up(self, run_id: str, folder: Path) -> None:
        """Nobody knows how far the launcher got with it. It ends what it began, and writes
        that down; of what it did not begin nothing stays."""

        async def end() -> None:
            with contextlib.suppress(LauncherUnavailable):
                await self._kill(run_id, folder, "stopped")
            if not (folder / "run.json").exists():
                remove_folder(folder)

        task = asyncio.get_running_loop().create_task(end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _launch(
        self,
        sandbox: Sandbox,
        command: Command,
        run_id: str,
        streams: RunStreams,
        confinement: Confinement,
    ) -> LiveRun:
        for _ in range(ENDING_TRIES):
            self._limit_again(sandbox)
            watch = self._watch(sandbox)
            await watch.settled()
            if not command.may_make_room:
                await watch.check_room()
            endings = watch.endings
            request = self._requests.run(sandbox, command, run_id, confinement)
            if (group := request.get("group")) is not None:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(group)
            done, told = os.pipe2(os.O_CLOEXEC)
            live = self._live(sandbox, run_id, streams, done)
            try:
                given = [*streams.given, *command.descriptors, told]
                reply, received = await self._ask_run(sandbox, request, confinement, streams, given)
            except BaseException:
                os.close(done)
                raise
            finally:
                os.close(told)
            problem = reply.get("problem")
            if problem is None:
                if received:
                    streams.stdin, streams.terminal = received[0], True
                self._warm.add(sandbox.spec.sandbox_id)
                if command.reader:
                    self._readers.begun(run_id, command.reader, command.keep_bytes)
                watch.started(run_id)
                live.begin(reply["pid"])
                return live
            os.close(done)
            await self._settled(sandbox.spec.sandbox_id)
            self._warm.discard(sandbox.spec.sandbox_id)
            if problem["step"] == "record":
                raise cannot_write(OSError(problem.get("errno", 0), problem.get("text", "")))
            # What was being set up while the sandbox was ended went with it.
            if problem["step"] not in ("ending", "cold") and watch.endings == endings:
                raise as_error(problem, command)
        raise SandboxUnavailable("The sandbox keeps ending.", hint="Look at the launcher's log.")

    def _limit_again(self, sandbox: Sandbox) -> None:
        """Before a sandbox is set up that an earlier daemon prepared, or that was idle: what
        could be enforced then may be out of our reach now. `LimitsUnavailable`, if strict."""
        sandbox_id = sandbox.spec.sandbox_id
        if sandbox_id in self._warm or sandbox_id in self._warming:
            return
        folders = SandboxFolders(sandbox.spec.folder)
        folders.put_carrel(sandbox.spec.carrel)
        folders.put_shells(sandbox.spec.shells)
        limits = self._enforcement.put_in_force(sandbox.spec)
        if limits != sandbox.limits:
            self._on_event(LimitsChanged(sandbox_id, limits))

    def _live(self, sandbox: Sandbox, run_id: str, streams: RunStreams, done: int) -> LiveRun:
        watch = self._watch(sandbox)
        links = Links(
            find=lambda live: self._find_exit(sandbox, live),
            end_input=lambda: self._end_input(run_id),
            on_exit=lambda ended: watch.ended(run_id, ended),
        )
        return LiveRun(run_id, streams, done, links)

    async def _end_input(self, run_id: str) -> None:
        fields: messages.CloseInputRequest = {"run_id": run_id}
        await self._launcher.ask("close_input", fields, [])

    async def _ask_run(
        self,
        sandbox: Sandbox,
        request: messages.RunRequest,
        confinement: Confinement,
        streams: RunStreams,
        given: list[int],
    ) -> tuple[dict[str, Any], list[int]]:
        """A sandbox that is believed to be warm, or will be, needs nothing staged."""
        sandbox_id = sandbox.spec.sandbox_id
        staged: dict[str, int] = {}
        if confinement.hold is not None:
            request["holder"] = None
            if sandbox_id not in self._warm and sandbox_id not in self._warming:
                request["holder"], staged = self._requests.sandbox(sandbox, confinement)
        try:
            kept = [streams.stdin] if streams.held and streams.stdin is not None else []
            sent = [*given, *kept, *streams.sources, *staged.values()]
            return await self._launcher.ask("run", request, sent)
        finally:
            for descriptor in staged.values():
                os.close(descriptor)

    def expect(self) -> None:
        """See `LocalRuntime`. It takes a moment only, and those who come meanwhile share it."""
        if self._stirring is None or self._stirring.done():
            loop = asyncio.get_running_loop()
            self._stirring = loop.run_in_executor(None, self._enforcement.cgroups.stir)

    def welcome(self, spec: SandboxSpec) -> None:
        """A space is being made: what its sandbox will have is written from now on."""
        if spec.family in ("", spec.sandbox_id):
            with contextlib.suppress(OSError):
                made = Remembered(free=free_room(spec.folder), is_new=True)
                self._remembered[spec.sandbox_id] = made

    def begin(self, sandbox: Sandbox, confinement: Confinement) -> None:
        """Sets the sandbox up as far as that goes without its tree, which `place` brings."""
        task = self._warm_up(sandbox, confinement)
        self._begun[sandbox.spec.sandbox_id] = task
        task.add_done_callback(_heard)

    def place(self, sandbox: Sandbox, mounts: list[int]) -> asyncio.Task[None]:
        """As `warm`, for one that was begun; `mounts` are its tree, once for each place where it is
        shown, and become ours."""
        sandbox_id = sandbox.spec.sandbox_id
        work = self._place(sandbox_id, mounts, self._begun.pop(sandbox_id))
        task = _with_descriptors(work, mounts)
        return self._warms(sandbox_id, task)

    def warm(self, sandbox: Sandbox, confinement: Confinement) -> asyncio.Task[None]:
        """Begins to set the sandbox up, ready for its first command, which waits for that."""
        return self._warms(sandbox.spec.sandbox_id, self._warm_up(sandbox, confinement))

    def _warms(self, sandbox_id: str, task: asyncio.Task[None]) -> asyncio.Task[None]:
        self._warming[sandbox_id] = task
        task.add_done_callback(lambda done: self._warmed(sandbox_id, done))
        return task

    async def _place(self, sandbox_id: str, mounts: list[int], begun: asyncio.Task[None]) -> None:
        place: messages.PlaceRequest = {"sandbox_id": sandbox_id}
        await self._ask("place", place, mounts)
        await begun

    def _warm_up(self, sandbox: Sandbox, confinement: Confinement) -> asyncio.Task[None]:
        plan, staged = self._requests.sandbox(sandbox, confinement)
        descriptors = [*staged.values()]

        async def ask() -> None:
            await self._ask("warm", self._requests.warm(sandbox, plan), descriptors)
            self._warm.add(sandbox.spec.sandbox_id)

        return _with_descriptors(ask(), descriptors)

    def _warmed(self, sandbox_id: str, task: asyncio.Task[None]) -> None:
        if self._warming.get(sandbox_id) is task:
            del self._warming[sandbox_id]
        _heard(task)

    async def _settled(self, sandbox_id: str) -> None:
        """When the sandbox is set up, or could not be."""
        task = self._warming.get(sandbox_id)
        if task is not None:
            await asyncio.wait([task])

    def _watch(self, sandbox: Sandbox) -> LimitWatch:
        sandbox_id = sandbox.spec.sandbox_id
        watch = self._watches.get(sandbox_id)
        if watch is None:
            inhabitants = Inhabitants(
                lambda: self._members(sandbox),
                lambda: self._all_members(sandbox),
                lambda: self._relatives(sandbox),
                lambda reason: self._end_all(sandbox, reason),
                lambda: self._still(sandbox, "pause"),
                lambda: self._still(sandbox, "resume"),
            )
            relatives = [self._watches[one.spec.sandbox_id] for one in self._family(sandbox)[1:]]
            known = [one.remembered for one in relatives]
            before = self._remembered.pop(sandbox_id, None) or next(filter(None, known), None)
            watch = LimitWatch(sandbox, self._enforcement, self._on_event, inhabitants, before)
            self._watches[sandbox_id] = watch
        return watch

    def watch(self, sandbox: Sandbox, *, inhabited: bool = False) -> None:
        """See `LocalRuntime`. `inhabited`: something is known to be in it."""
        group = self._enforcement.group(sandbox)
        if inhabited or self._enforcement.cgroups.members(group):
            self._watch(sandbox).look_at_disk()

    async def check_writing(self, sandbox: Sandbox, written: int = 0) -> None:
        """See `LocalRuntime`."""
        await self._watch(sandbox).check_room(far=False, written=written)

    def close(self) -> None:
        """Nobody is watched any more; what runs goes on."""
        for watch in self._watches.values():
            watch.close()

    async def _members(self, sandbox: Sandbox) -> list[int]:
        reply, _ = await self._launcher.ask("members", self._requests.members(sandbox), [])
        return list(reply.get("pids", ()))

    async def _all_members(self, sandbox: Sandbox) -> list[int]:
        return (await self._networked(sandbox))[0]

    async def _networked(self, sandbox: Sandbox) -> tuple[list[int], str]:
        """With those that hold it, and the name of the network of its pod."""
        reply, _ = await self._launcher.ask("members", self._requests.members(sandbox), [])
        pids = [pid for name in ("pids", "holding", "waiting") for pid in reply.get(name, ())]
        return pids, reply.get("network", "")

    async def _relatives(self, sandbox: Sandbox) -> list[int]:
        family = self._family(sandbox)
        return [pid for one in family for pid in await self._all_members(one)]

    def _family(self, sandbox: Sandbox) -> list[Sandbox]:
        """All that have their limits together, first the sandbox itself."""
        spec = sandbox.spec
        others = [one.sandbox for one in self._watches.values() if one.sandbox.spec != spec]
        family = [one for one in others if spec.family and one.spec.family == spec.family]
        return [sandbox, *family]

    async def _still(self, sandbox: Sandbox, op: str) -> bool:
        """To `pause` a sandbox and its family, or `resume` them. False when one of them does not
        stand still, or has not. A launcher of an earlier version cannot do it."""
        still = True
        for one in self._family(sandbox):
            fields: messages.PauseRequest = {**self._requests.members(one), "seconds": PAUSE_S}
            reply, _ = await self._launcher.ask(op, fields, [])
            still = still and reply.get("still", True)
        return still

    async def pause(self, sandbox: Sandbox, seconds: float) -> bool:
        """By its control groups alone: a signal is something that its programs can see."""
        members = self._requests.members(sandbox)
        if not members["groups"]:
            return False
        fields: messages.PauseRequest = {**members, "seconds": seconds}
        reply, _ = await self._launcher.ask("pause", fields, [])
        return reply.get("problem") is None and bool(reply.get("still", False))

    async def resume(self, sandbox: Sandbox) -> None:
        await self._launcher.ask("resume", self._requests.members(sandbox), [])

    async def _end_all(self, sandbox: Sandbox, reason: str) -> None:
        """As a stop, but for the limits: the next command finds the sandbox as it was."""
        fields = self._requests.stop(sandbox, 0.0, reason)
        with contextlib.suppress(LauncherUnavailable):
            await self._launcher.ask("stop", fields, [], timeout_s=STOP_MARGIN_S)
        self._warm.discard(sandbox.spec.sandbox_id)

    async def _kill(
        self, run_id: str, folder: Path, reason: str
    ) -> messages.LauncherProblem | None:
        fields: messages.KillRequest = {"run_id": run_id, "folder": str(folder), "reason": reason}
        reply, _ = await self._launcher.ask("kill", fields, [])
        return reply.get("problem")

    # Taking up

    async def attach(self, sandbox: Sandbox, run_id: str) -> LiveRun:
        if not is_id(run_id):
            raise RunNotFound(f"{run_id!r} is no id of a run.", hint="`carrel runs` lists them.")
        folder = SandboxFolders(sandbox.spec.folder).run(run_id)
        done, told = os.pipe2(os.O_CLOEXEC)
        try:
            reply, descriptors = await self._attach(sandbox, run_id, told)
        except BaseException:
            os.close(done)
            raise
        stdin = descriptors[0] if descriptors else None
        streams = found_streams(folder, stdin, reply["terminal"])
        live = self._live(sandbox, run_id, streams, done)
        self._watch(sandbox).started(run_id)
        live.begin(reply["pid"])
        return live

    async def _attach(
        self,
        sandbox: Sandbox,
        run_id: str,
        told: int,
        given: str = "",
        held: Sequence[int] = (),
        readers: Readers | None = None,
    ) -> tuple[dict[str, Any], list[int]]:
        folder = str(SandboxFolders(sandbox.spec.folder).run(run_id))
        fields: messages.AttachRequest = {"run_id": run_id, "folder": folder, "given": given}
        if readers is not None:
            fields["holds"] = readers.of(run_id)
        try:
            return await self._ask("attach", fields, [told, *held])
        finally:
            os.close(told)

    async def _find_exit(self, sandbox: Sandbox, live: LiveRun) -> dict[str, Any] | None:
        """The launcher went away. Its exit file, or another launcher, knows more; that one
        gets what we still have of the run."""
        path = SandboxFolders(sandbox.spec.folder).run(live.run_id) / "exit.json"
        try:
            record: dict[str, Any] = json.loads(path.read_text())
            return record
        except (OSError, ValueError):
            done, told = os.pipe2(os.O_CLOEXEC)
        try:
            given, held = live.still_held()
            _, received = await self._attach(
                sandbox, live.run_id, told, given, held, readers=self._readers
            )
        except BaseException:
            os.close(done)
            raise
        for descriptor in received:
            os.close(descriptor)
        live.resume(done)
        return None

    # Warm processes

    async def warm_up(self, zygote: Zygote) -> None:
        await self._ask("zygote", zygote_request(zygote), [], timeout_s=ZYGOTE_S)

    async def cool_down(self, name: str) -> None:
        fields: messages.EndZygoteRequest = {"name": name}
        await self._launcher.ask("unzygote", fields, [])

    # Ending

    async def signal(self, run_id: str, number: int) -> None:
        fields: messages.SignalRequest = {"run_id": run_id, "signal": number}
        await self._launcher.ask("signal", fields, [])

    async def kill(self, sandbox: Sandbox, run_id: str) -> None:
        if not is_id(run_id):
            raise RunNotFound(f"{run_id!r} is no id of a run.", hint="`carrel runs` lists them.")
        folder = SandboxFolders(sandbox.spec.folder).run(run_id)
        problem = await self._kill(run_id, folder, "")
        if problem is not None:
            raise _does_not_end(f"the run {run_id}", problem)

    def usage(self, sandbox: Sandbox) -> ResourceUsage:
        return self._enforcement.cgroups.usage(self._enforcement.group(sandbox))

    async def stop(self, sandbox: Sandbox, grace_s: float) -> None:
        await self._settled(sandbox.spec.sandbox_id)
        begun = self._begun.pop(sandbox.spec.sandbox_id, None)
        if begun is not None:
            # What has not been asked by now must not be asked after the stop.
            begun.cancel()
            await asyncio.wait([begun])
        fields = self._requests.stop(sandbox, grace_s)
        reply, _ = await self._launcher.ask("stop", fields, [], timeout_s=grace_s + STOP_MARGIN_S)
        if reply.get("problem") is not None:
            raise _does_not_end("the sandbox", reply["problem"])
        self._warm.discard(sandbox.spec.sandbox_id)
        self.ports.forget(sandbox.spec.sandbox_id)
        watch = self._watches.pop(sandbox.spec.sandbox_id, None)
        remembered = self._remembered.pop(sandbox.spec.sandbox_id, None)
        if watch is not None:
            watch.close()
            remembered = watch.remembered
        if remembered is not None and not remembered.is_new:
            self._remembered[sandbox.spec.sandbox_id] = remembered
        await asyncio.to_thread(self._enforcement.lift, sandbox)


class EngineRuntime(ABC):
    """The part of `LocalRuntime` that is the same however commands are confined."""

    name: ClassVar[str]

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @abstractmethod
    def _confine(self, sandbox: Sandbox, tree: TreeMount, command: Command) -> Confinement:
        """How this runtime confines the command."""

    async def run(self, sandbox: Sandbox, tree: TreeMount, command: Command) -> LocalRun:
        return await self._engine.run(sandbox, command, self._confine(sandbox, tree, command))

    async def attach(self, sandbox: Sandbox, run_id: str) -> LocalRun:
        return await self._engine.attach(sandbox, run_id)

    async def signal(self, sandbox: Sandbox, run_id: str, signal: int) -> None:
        await self._engine.signal(run_id, signal)

    async def kill(self, sandbox: Sandbox, run_id: str) -> None:
        await self._engine.kill(sandbox, run_id)

    async def usage(self, sandbox: Sandbox) -> ResourceUsage:
        return await asyncio.to_thread(self._engine.usage, sandbox)

    async def stop(self, sandbox: Sandbox, grace_s: float = 2.0) -> None:
        await self._engine.stop(sandbox, grace_s)

    async def pause(self, sandbox: Sandbox, seconds: float) -> bool:
        return await self._engine.pause(sandbox, seconds)

    async def resume(self, sandbox: Sandbox) -> None:
        await self._engine.resume(sandbox)

    async def _run_probe(
        self, sandbox: Sandbox, tree: TreeMount, targets: dict[str, Any], command: Command
    ) -> LocalRun:
        """The launcher's own code is run instead of the command, and tries to get out."""
        confinement = replace(self._confine(sandbox, tree, command), probe=targets)
        return await self._engine.run(sandbox, command, confinement)

    def _has_network(self, sandbox: Sandbox) -> bool:
        """Its own."""
        return False

    async def listening(self, sandbox: Sandbox, before: Listening | None = None) -> Listening:
        private = self._has_network(sandbox)
        return await self._engine.ports.listening(sandbox, before, private=private)

    async def connect(self, sandbox: Sandbox, port: int) -> socket.socket:
        private = self._has_network(sandbox)
        return await self._engine.ports.connect(sandbox, port, private=private)

    def expect(self) -> None:
        self._engine.expect()

    def watch(self, sandbox: Sandbox) -> None:
        self._engine.watch(sandbox)

    async def check_writing(self, sandbox: Sandbox, written: int = 0) -> None:
        await self._engine.check_writing(sandbox, written)


def _does_not_end(what: str, problem: messages.LauncherProblem) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"Processes {problem.get('text', '')} of {what} do not end.",
        hint="They wait in the kernel, mostly for a disk or a network mount.",
    )


def _with_descriptors(work: Coroutine[Any, Any, None], used: list[int]) -> asyncio.Task[None]:
    """Closes them at its end, which may come before its beginning."""
    task = asyncio.create_task(work)

    def close(_done: object) -> None:
        for descriptor in used:
            os.close(descriptor)

    task.add_done_callback(close)
    return task


def _heard(task: asyncio.Task[None]) -> None:
    """Who did not wait for a sandbox hears of its failure from the first command."""
    if not task.cancelled():
        task.exception()
