"""What all runtimes on this machine share: running, taking up, signalling, stopping.

A runtime says how a command is confined (`Confinement`); the engine does the rest through
the launcher, and tells of limits that were hit.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from carrel.domain.errors import (
    LauncherUnavailable,
    RunNotFound,
    SandboxUnavailable,
    WarmUnavailable,
)
from carrel.domain.ids import is_id
from carrel.domain.launching import LauncherPort
from carrel.domain.limits import Usage
from carrel.domain.runtimes import Command, LimitHit, Output, Sandbox, SandboxSpec, Zygote
from carrel.runtimes.layout import SandboxFolders
from carrel.runtimes.limits.cgroups import CgroupHandle
from carrel.runtimes.limits.enforcing import Enforcement
from carrel.runtimes.limits.watching import LimitWatch
from carrel.runtimes.live import Links, LiveRun
from carrel.runtimes.problems import as_error, check_command, check_zygote
from carrel.runtimes.run_folders import cannot_write, checked_id, make_folder, remove_folder
from carrel.runtimes.streams import RECORDED, Streams, found_streams

ZYGOTE_S = 80.0
"""The launcher has its own bound for a warm process to load its modules, which is less."""
STOP_MARGIN_S = 20.0
"""Over the grace: killing and reaping have their own bounds in the launcher."""
ENDING_TRIES = 5
"""A sandbox that is just ending from idleness is started anew; more often is a fault."""

LINGER_S = 10.0
"""How long an idle sandbox keeps its namespaces: the next command of a session finds it warm."""

OnEvent = Callable[[LimitHit], None]


@dataclass(frozen=True)
class Confinement:
    """How one command is confined, as the launcher wants it.

    `hold` is for runtimes with namespaces only, and is called when the sandbox has to be set
    up: it gives bubblewrap's part and, by name, the detached mounts, which the engine closes.
    """

    uid: int | None
    gid: int | None
    confined: bool
    cwd: str
    env: dict[str, str]
    landlock: dict[str, Any] | None = None
    scope_sockets: bool = False
    """Abstract Unix sockets of others are out of reach, where the network is not one's own."""
    seccomp: bytes = b""
    hold: Callable[[], tuple[dict[str, Any], dict[str, int]]] | None = None
    probe: dict[str, Any] | None = None


class Engine:
    def __init__(
        self,
        runtime: str,
        launcher: LauncherPort,
        enforcement: Enforcement,
        on_event: OnEvent,
        linger_s: float = LINGER_S,
    ) -> None:
        self._runtime = runtime
        self._linger_s = linger_s
        self._launcher = launcher
        self._enforcement = enforcement
        self._on_event = on_event
        self._watches: dict[str, LimitWatch] = {}
        self._warm: set[str] = set()
        self._warming: dict[str, asyncio.Task[None]] = {}
        self._begun: dict[str, asyncio.Task[None]] = {}
        """Sandboxes that are set up while their trees are still being made."""
        self._ending: set[asyncio.Task[None]] = set()
        self._stirring: asyncio.Future[None] | None = None

    # Starting

    def prepare(self, spec: SandboxSpec) -> Sandbox:
        """Folders and groups; no process."""
        if not is_id(spec.sandbox_id):
            raise SandboxUnavailable(f"{spec.sandbox_id!r} is no id of a sandbox.")
        SandboxFolders(spec.folder).make(spec.owner)
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
        streams: Streams,
        confinement: Confinement,
    ) -> LiveRun:
        watch = self._watch(sandbox)
        request = self._request(sandbox, command, run_id, confinement)
        for _ in range(ENDING_TRIES):
            if request["group"] is not None:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(request["group"])
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
                watch.started(run_id)
                live.begin(reply["pid"])
                return live
            os.close(done)
            await self._settled(sandbox.spec.sandbox_id)
            self._warm.discard(sandbox.spec.sandbox_id)
            if problem["step"] == "record":
                raise cannot_write(OSError(problem["errno"], problem["text"]))
            if problem["step"] not in ("ending", "cold"):
                raise as_error(problem, command)
        raise SandboxUnavailable("The sandbox keeps ending.", hint="Look at the launcher's log.")

    def _live(self, sandbox: Sandbox, run_id: str, streams: Streams, done: int) -> LiveRun:
        watch = self._watch(sandbox)
        links = Links(
            find=lambda live: self._find_exit(sandbox, live),
            end_input=lambda: self._end_input(run_id),
            on_exit=lambda ended: watch.ended(run_id, ended),
        )
        return LiveRun(run_id, streams, done, links)

    async def _end_input(self, run_id: str) -> None:
        await self._launcher.ask("close_input", {"run_id": run_id}, [])

    async def _ask_run(
        self,
        sandbox: Sandbox,
        request: dict[str, Any],
        confinement: Confinement,
        streams: Streams,
        given: list[int],
    ) -> tuple[dict[str, Any], list[int]]:
        """A sandbox that is believed to be warm, or will be, needs nothing staged."""
        sandbox_id = sandbox.spec.sandbox_id
        staged: dict[str, int] = {}
        if confinement.hold is not None:
            request["holder"] = None
            if sandbox_id not in self._warm and sandbox_id not in self._warming:
                request["holder"], staged = self._holder(sandbox, confinement)
        try:
            kept = [streams.stdin] if streams.held and streams.stdin is not None else []
            sent = [*given, *kept, *streams.sources, *staged.values()]
            return await self._launcher.ask("run", request, sent)
        finally:
            for descriptor in staged.values():
                os.close(descriptor)

    def _holder(
        self, sandbox: Sandbox, confinement: Confinement
    ) -> tuple[dict[str, Any], dict[str, int]]:
        """What the launcher needs to set the sandbox up, and the mounts by name."""
        assert confinement.hold is not None
        holder, staged = confinement.hold()
        group = self._enforcement.group(sandbox)
        base = {
            "join": list(group.procs),
            "tracking": group.tracking,
            "uid": confinement.uid,
            "gid": confinement.gid,
            "scope_sockets": confinement.scope_sockets,
            "seccomp": confinement.seccomp.hex(),
        }
        return {**holder, "join": list(group.procs), "base": base, "stage": [*staged]}, staged

    def expect(self) -> None:
        """See `Runtime`. It takes a moment only, and those who come meanwhile share it."""
        if self._stirring is None or self._stirring.done():
            loop = asyncio.get_running_loop()
            self._stirring = loop.run_in_executor(None, self._enforcement.cgroups.stir)

    def begin(self, sandbox: Sandbox, confinement: Confinement) -> None:
        """Sets the sandbox up as far as that goes without its tree, which `place` brings."""
        task = self._warm_up(sandbox, confinement)
        self._begun[sandbox.spec.sandbox_id] = task
        task.add_done_callback(_heard)

    def place(self, sandbox: Sandbox, mount: int) -> asyncio.Task[None]:
        """As `warm`, for one that was begun; `mount` is its tree, which becomes ours."""
        sandbox_id = sandbox.spec.sandbox_id
        work = self._place(sandbox_id, mount, self._begun.pop(sandbox_id))
        task = _with_descriptors(work, [mount])
        return self._warms(sandbox_id, task)

    def warm(self, sandbox: Sandbox, confinement: Confinement) -> asyncio.Task[None]:
        """Begins to set the sandbox up, ready for its first command, which waits for that."""
        return self._warms(sandbox.spec.sandbox_id, self._warm_up(sandbox, confinement))

    def _warms(self, sandbox_id: str, task: asyncio.Task[None]) -> asyncio.Task[None]:
        self._warming[sandbox_id] = task
        task.add_done_callback(lambda done: self._warmed(sandbox_id, done))
        return task

    async def _place(self, sandbox_id: str, mount: int, begun: asyncio.Task[None]) -> None:
        reply, _ = await self._launcher.ask("place", {"sandbox_id": sandbox_id}, [mount])
        if reply.get("problem") is not None:
            raise as_error(reply["problem"])
        await begun

    def _warm_up(self, sandbox: Sandbox, confinement: Confinement) -> asyncio.Task[None]:
        holder, staged = self._holder(sandbox, confinement)
        work = self._ask_warm(sandbox.spec.sandbox_id, holder, [*staged.values()])
        return _with_descriptors(work, [*staged.values()])

    async def _ask_warm(self, sandbox_id: str, holder: dict[str, Any], staged: list[int]) -> None:
        fields = {"sandbox_id": sandbox_id, "holder": holder, "linger": self._linger_s}
        reply, _ = await self._launcher.ask("warm", fields, staged)
        if reply.get("problem") is not None:
            raise as_error(reply["problem"])
        self._warm.add(sandbox_id)

    def _warmed(self, sandbox_id: str, task: asyncio.Task[None]) -> None:
        if self._warming.get(sandbox_id) is task:
            del self._warming[sandbox_id]
        _heard(task)

    async def _settled(self, sandbox_id: str) -> None:
        """When the sandbox is set up, or could not be."""
        task = self._warming.get(sandbox_id)
        if task is not None:
            await asyncio.wait([task])

    def _request(
        self,
        sandbox: Sandbox,
        command: Command,
        run_id: str,
        confinement: Confinement,
    ) -> dict[str, Any]:
        spec = sandbox.spec
        group = self._enforcement.group(sandbox)
        # With namespaces, the process that waits inside has a group already.
        own = None if confinement.hold is not None else _run_group(group, run_id)
        plan: dict[str, Any] = {
            "join": [*group.procs, f"{own}/cgroup.procs"] if own is not None else [],
            "rlimits": self._enforcement.rlimits(spec),
            "keeper": confinement.hold is None and own is None,
            "given": len(command.descriptors),
            "pty": list(command.pty_size) if command.output is Output.PTY else None,
            "landlock": confinement.landlock,
            "uid": confinement.uid,
            "gid": confinement.gid,
            "cwd": confinement.cwd,
            "confined": confinement.confined,
            "seccomp": "" if confinement.hold is not None else confinement.seccomp.hex(),
            "probe": confinement.probe,
            "argv": list(command.argv),
            "env": confinement.env,
            "call": None if command.call is None else asdict(command.call),
            "warm": bool(command.warm),
        }
        return {
            "sandbox_id": spec.sandbox_id,
            "run_id": run_id,
            "folder": str(SandboxFolders(spec.folder).run(run_id)),
            "record": {"names": RECORDED[command.output], "keep": command.keep_bytes},
            "input": command.stdin and command.output is Output.FILES,
            "group": own,
            "oom": _oom_source(group) if spec.limits.memory_bytes is not None else None,
            "timeout": _least(command.timeout_s, spec.limits.wall_seconds),
            "linger": self._linger_s,
            "zygote": command.warm,
            "plan": plan,
        }

    def _watch(self, sandbox: Sandbox) -> LimitWatch:
        sandbox_id = sandbox.spec.sandbox_id
        watch = self._watches.get(sandbox_id)
        if watch is None:
            runs = SandboxFolders(sandbox.spec.folder)

            async def kill(run_id: str, reason: str) -> None:
                await self._kill(run_id, runs.run(run_id), reason)

            watch = LimitWatch(sandbox, self._enforcement, self._on_event, kill)
            self._watches[sandbox_id] = watch
        return watch

    async def _kill(self, run_id: str, folder: Path, reason: str) -> dict[str, Any]:
        fields = {"run_id": run_id, "folder": str(folder), "reason": reason}
        return (await self._launcher.ask("kill", fields, []))[0]

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
        self, sandbox: Sandbox, run_id: str, told: int, given: str = "", held: Sequence[int] = ()
    ) -> tuple[dict[str, Any], list[int]]:
        folder = str(SandboxFolders(sandbox.spec.folder).run(run_id))
        fields = {"run_id": run_id, "folder": folder, "given": given}
        try:
            reply, descriptors = await self._launcher.ask("attach", fields, [told, *held])
        finally:
            os.close(told)
        if reply.get("problem") is not None:
            raise as_error(reply["problem"])
        return reply, descriptors

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
            _, received = await self._attach(sandbox, live.run_id, told, *live.still_held())
        except BaseException:
            os.close(done)
            raise
        for descriptor in received:
            os.close(descriptor)
        live.resume(done)
        return None

    # Warm processes

    async def warm_up(self, zygote: Zygote) -> None:
        check_zygote(zygote)
        root = os.geteuid() == 0
        fields = {
            "name": zygote.name,
            "python": zygote.python,
            "preload": list(zygote.preload),
            "load": list(zygote.load),
            "env": {"LANG": "C.UTF-8", **zygote.env},
            "uid": zygote.owner.uid if root else None,
            "gid": zygote.owner.gid if root else None,
            "idle": zygote.idle_s,
        }
        reply, _ = await self._launcher.ask("zygote", fields, [], timeout_s=ZYGOTE_S)
        if reply.get("problem") is not None:
            raise as_error(reply["problem"])

    async def cool_down(self, name: str) -> None:
        await self._launcher.ask("unzygote", {"name": name}, [])

    # Ending

    async def signal(self, run_id: str, number: int) -> None:
        await self._launcher.ask("signal", {"run_id": run_id, "signal": number}, [])

    async def kill(self, sandbox: Sandbox, run_id: str) -> None:
        if not is_id(run_id):
            raise RunNotFound(f"{run_id!r} is no id of a run.", hint="`carrel runs` lists them.")
        folder = SandboxFolders(sandbox.spec.folder).run(run_id)
        reply = await self._kill(run_id, folder, "")
        if reply.get("problem") is not None:
            raise _does_not_end(f"the run {run_id}", reply["problem"])

    def usage(self, sandbox: Sandbox) -> Usage:
        return self._enforcement.cgroups.usage(self._enforcement.group(sandbox))

    async def stop(self, sandbox: Sandbox, grace_s: float) -> None:
        await self._settled(sandbox.spec.sandbox_id)
        begun = self._begun.pop(sandbox.spec.sandbox_id, None)
        if begun is not None:
            # What has not been asked by now must not be asked after the stop.
            begun.cancel()
            await asyncio.wait([begun])
        group = self._enforcement.group(sandbox)
        fields = {
            "sandbox_id": sandbox.spec.sandbox_id,
            "grace": grace_s,
            "groups": list(group.folders),
            "runs": str(SandboxFolders(sandbox.spec.folder).runs),
        }
        reply, _ = await self._launcher.ask("stop", fields, [], timeout_s=grace_s + STOP_MARGIN_S)
        if reply.get("problem") is not None:
            raise _does_not_end("the sandbox", reply["problem"])
        self._warm.discard(sandbox.spec.sandbox_id)
        watch = self._watches.pop(sandbox.spec.sandbox_id, None)
        if watch is not None:
            watch.close()
        await asyncio.to_thread(self._enforcement.lift, sandbox)


def _does_not_end(what: str, problem: dict[str, Any]) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"Processes {problem['text']} of {what} do not end.",
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


def _run_group(group: CgroupHandle, run_id: str) -> str | None:
    """A group for one command, below the sandbox's, by which all of it can be killed. The
    launcher removes it when the command has ended and nothing of it is left."""
    if group.tracking is None:
        return None
    return f"{group.tracking}/{run_id}"


def _oom_source(group: CgroupHandle) -> list[str] | None:
    """Where the kernel counts what it killed for want of memory."""
    folder = group.folder("memory")
    if folder is None:
        return None
    name = "memory.events" if (folder / "memory.events").exists() else "memory.oom_control"
    return [str(folder / name), "oom_kill"]


def _least(*values: float | None) -> float | None:
    given = [value for value in values if value is not None]
    return min(given) if given else None
