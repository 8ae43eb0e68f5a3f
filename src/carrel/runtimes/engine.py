"""What all runtimes on this machine share: running, taking up, signalling, stopping.

A runtime says how a command is confined (`Confinement`); the engine does the rest through
the launcher, and tells of limits that were hit.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from carrel.domain.errors import RunNotFound, SandboxUnavailable
from carrel.domain.ids import is_id, new_id
from carrel.domain.launching import LauncherPort
from carrel.domain.limits import Usage
from carrel.domain.runtimes import Command, LimitHit, Output, Sandbox, SandboxSpec
from carrel.runtimes.layout import SandboxFolders
from carrel.runtimes.limits.cgroups import CgroupHandle
from carrel.runtimes.limits.enforcing import Enforcement
from carrel.runtimes.limits.watching import LimitWatch
from carrel.runtimes.live import LiveRun
from carrel.runtimes.problems import as_error, check_command
from carrel.runtimes.streams import Streams, open_streams

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
        run_id = new_id("ru")
        folder = SandboxFolders(sandbox.spec.folder).run(run_id)
        os.mkdir(folder, 0o700)
        streams = open_streams(command, folder)
        try:
            live = await self._launch(sandbox, command, run_id, streams, confinement)
        except BaseException:
            streams.close_ours()
            _remove_folder(folder)
            raise
        finally:
            streams.close_given()
        return live

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
                reply, received = await self._ask_run(sandbox, request, confinement, streams, told)
            except BaseException:
                os.close(done)
                raise
            finally:
                os.close(told)
            problem = reply.get("problem")
            if problem is None:
                if received:
                    streams.stdin = streams.stdout = received[0]
                self._warm.add(sandbox.spec.sandbox_id)
                watch.started(run_id)
                live.begin(reply["pid"])
                return live
            os.close(done)
            self._warm.discard(sandbox.spec.sandbox_id)
            if problem["step"] not in ("ending", "cold"):
                raise as_error(problem, command)
        raise SandboxUnavailable("The sandbox keeps ending.", hint="Look at the launcher's log.")

    def _live(self, sandbox: Sandbox, run_id: str, streams: Streams, done: int) -> LiveRun:
        watch = self._watch(sandbox)
        return LiveRun(
            run_id,
            streams,
            done,
            lambda live: self._find_exit(sandbox, live),
            lambda ended: watch.ended(run_id, ended),
        )

    async def _ask_run(
        self,
        sandbox: Sandbox,
        request: dict[str, Any],
        confinement: Confinement,
        streams: Streams,
        told: int,
    ) -> tuple[dict[str, Any], list[int]]:
        """A sandbox that is believed to be warm needs nothing staged."""
        staged: dict[str, int] = {}
        if confinement.hold is not None:
            request["holder"] = None
            if sandbox.spec.sandbox_id not in self._warm:
                request["holder"], staged = self._holder(sandbox, confinement)
        try:
            sent = [*streams.given, told, *staged.values()]
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

    async def warm(self, sandbox: Sandbox, confinement: Confinement) -> None:
        """Sets the sandbox up, ready for its first command."""
        holder, staged = self._holder(sandbox, confinement)
        sandbox_id = sandbox.spec.sandbox_id
        fields = {"sandbox_id": sandbox_id, "holder": holder, "linger": self._linger_s}
        try:
            reply, _ = await self._launcher.ask("warm", fields, [*staged.values()])
        finally:
            for descriptor in staged.values():
                os.close(descriptor)
        if reply.get("problem") is not None:
            raise as_error(reply["problem"])
        self._warm.add(sandbox_id)

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
        }
        return {
            "sandbox_id": spec.sandbox_id,
            "run_id": run_id,
            "folder": str(SandboxFolders(spec.folder).run(run_id)),
            "group": own,
            "oom": _oom_source(group) if spec.limits.memory_bytes is not None else None,
            "timeout": _least(command.timeout_s, spec.limits.wall_seconds),
            "linger": self._linger_s,
            "plan": plan,
        }

    def _watch(self, sandbox: Sandbox) -> LimitWatch:
        sandbox_id = sandbox.spec.sandbox_id
        watch = self._watches.get(sandbox_id)
        if watch is None:
            watch = LimitWatch(sandbox, self._enforcement, self._on_event, self._kill)
            self._watches[sandbox_id] = watch
        return watch

    async def _kill(self, run_id: str, reason: str) -> None:
        await self._launcher.ask("kill", {"run_id": run_id, "reason": reason}, [])

    # Taking up

    async def attach(self, sandbox: Sandbox, run_id: str) -> LiveRun:
        if not is_id(run_id):
            raise RunNotFound(f"{run_id!r} is no id of a run.", hint="`carrel runs` lists them.")
        folder = SandboxFolders(sandbox.spec.folder).run(run_id)
        streams = Streams(stdout=folder / "stdout", stderr=folder / "stderr")
        watch = self._watch(sandbox)
        done, told = os.pipe2(os.O_CLOEXEC)
        live = self._live(sandbox, run_id, streams, done)
        try:
            reply, descriptors = await self._attach(sandbox, run_id, told)
        except BaseException:
            os.close(done)
            raise
        if descriptors:
            streams.stdin = streams.stdout = descriptors[0]
            streams.stderr = None
        elif not (folder / "stdout").exists():
            streams.stdout = streams.stderr = None
        watch.started(run_id)
        live.begin(reply["pid"])
        return live

    async def _attach(
        self, sandbox: Sandbox, run_id: str, told: int
    ) -> tuple[dict[str, Any], list[int]]:
        folder = str(SandboxFolders(sandbox.spec.folder).run(run_id))
        try:
            reply, descriptors = await self._launcher.ask(
                "attach", {"run_id": run_id, "folder": folder}, [told]
            )
        finally:
            os.close(told)
        if reply.get("problem") is not None:
            raise as_error(reply["problem"])
        return reply, descriptors

    async def _find_exit(self, sandbox: Sandbox, live: LiveRun) -> dict[str, Any] | None:
        """The launcher went away. Its exit file, or another launcher, knows more."""
        path = SandboxFolders(sandbox.spec.folder).run(live.run_id) / "exit.json"
        try:
            record: dict[str, Any] = json.loads(path.read_text())
            return record
        except (OSError, ValueError):
            done, told = os.pipe2(os.O_CLOEXEC)
        try:
            await self._attach(sandbox, live.run_id, told)
        except BaseException:
            os.close(done)
            raise
        live.resume(done)
        return None

    # Ending

    async def signal(self, run_id: str, number: int) -> None:
        await self._launcher.ask("signal", {"run_id": run_id, "signal": number}, [])

    def usage(self, sandbox: Sandbox) -> Usage:
        return self._enforcement.cgroups.usage(self._enforcement.group(sandbox))

    async def stop(self, sandbox: Sandbox, grace_s: float) -> None:
        group = self._enforcement.group(sandbox)
        fields = {
            "sandbox_id": sandbox.spec.sandbox_id,
            "grace": grace_s,
            "groups": list(group.folders),
            "runs": str(SandboxFolders(sandbox.spec.folder).runs),
        }
        reply, _ = await self._launcher.ask("stop", fields, [], timeout_s=grace_s + STOP_MARGIN_S)
        if reply.get("problem") is not None:
            raise SandboxUnavailable(
                f"Processes {reply['problem']['text']} of the sandbox do not end.",
                hint="They wait in the kernel, mostly for a disk or a network mount.",
            )
        self._warm.discard(sandbox.spec.sandbox_id)
        watch = self._watches.pop(sandbox.spec.sandbox_id, None)
        if watch is not None:
            watch.close()
        await asyncio.to_thread(self._enforcement.lift, sandbox)


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


def _remove_folder(folder: os.PathLike[str]) -> None:
    for entry in os.scandir(folder):
        os.unlink(entry.path)
    os.rmdir(folder)
