"""Isolation is proven, not assumed: what is tried in a sandbox, when, and which runtime is chosen.

A proof tries to reach things that really are there: a file beside the sandbox's own folders,
this very process, a listener on the host's loopback, an abstract socket, shared memory. It
holds for one configuration of a runtime on one kernel, so it is made once for each in a
process's life.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from carrel.domain.availability import Availability
from carrel.domain.errors import IsolationUnproven, SandboxUnavailable
from carrel.domain.ids import new_id
from carrel.domain.runtimes import (
    Attempt,
    Bind,
    Command,
    LocalRun,
    Output,
    Proof,
    Runtime,
    Sandbox,
    SandboxSpec,
)
from carrel.domain.trees import TreeMount
from carrel.linux import processes
from carrel.runtimes.policy import service_sockets
from carrel.runtimes.sandbox import CLOSED, HOME, Identities, close_folders
from carrel.runtimes.systems import capabilities

SHARED_MEMORY = Path("/dev/shm")
PROBE_S = 120.0
"""The probe takes milliseconds; on a machine that swaps, or does much else, it may take long."""

Execute = Callable[[dict[str, Any], Command], Awaitable[LocalRun]]


class Prover:
    def __init__(self, data: Path, identities: Identities, shown: tuple[Bind, ...] = ()) -> None:
        """`shown` is what all sandboxes show, so that one proof is for all that show no more."""
        self._shown = shown
        self._data = data
        self._identities = identities
        self._proven: set[tuple[object, ...]] = set()
        self._last: tuple[str, Proof] | None = None

    async def require(
        self, runtime: Runtime, sandbox: Sandbox, tree: TreeMount, stamp: object = None
    ) -> None:
        """Raises `IsolationUnproven` unless this configuration holds. `stamp` is of the
        program that makes the walls: another one is another configuration."""
        if self.is_proven(sandbox, stamp):
            return
        proof = await runtime.verify(sandbox, tree)
        check(proof)
        self._proven.add((*_configuration(sandbox), stamp))
        self._last = sandbox.spec.sandbox_id, proof

    def is_proven(self, sandbox: Sandbox, stamp: object = None) -> bool:
        return (*_configuration(sandbox), stamp) in self._proven

    async def prove(
        self, sandbox: Sandbox, tree: TreeMount, uncovered: tuple[str, ...], execute: Execute
    ) -> Proof:
        """`uncovered` names attempts that the runtime's capabilities say it does not refuse."""
        name = sandbox.runtime
        with self._targets(name, sandbox.spec) as targets:
            targets["uncovered"] = list(uncovered)
            shown = [str(path) for path in tree.read_only]
            shown += [path for path in (sandbox.spec.also_at, sandbox.spec.and_at) if path]
            targets["shown"] = [bind.target for bind in sandbox.spec.binds] + shown
            command = Command(argv=("probe",), output=Output.PIPES, timeout_s=PROBE_S)
            run = await execute(targets, command)
            try:
                output, errors = await asyncio.gather(
                    asyncio.to_thread(_read_all, run.stdout),
                    asyncio.to_thread(_read_all, run.stderr),
                )
                ended = await run.wait()
            finally:
                run.close()
        if ended.code != 0:
            raise IsolationUnproven(
                f"The probe of {name} ended with {ended}: {errors.decode(errors='replace')[-500:]}"
            )
        found = json.loads(output)
        return Proof(
            name, tuple(Attempt(one["name"], one["refused"], one["detail"]) for one in found)
        )

    async def try_out(self, runtime: Runtime) -> Proof:
        """A whole sandbox on an empty tree, proven and stopped again; leaves nothing."""
        sandbox_id = new_id("sp")
        (self._data / "spaces").mkdir(mode=CLOSED, parents=True, exist_ok=True)
        folder = self._data / "spaces" / sandbox_id
        owner = self._identities.take(sandbox_id)
        try:
            folder.mkdir(mode=CLOSED)
            tree = folder / "project"
            tree.mkdir(mode=0o755)
            if os.geteuid() == 0:
                os.chown(tree, owner.uid, owner.gid)
            spec = SandboxSpec(sandbox_id, folder, tree, owner, binds=self._shown)
            sandbox = await runtime.start(spec, TreeMount(tree))
            try:
                # A start that was the first of its kind has just proven it.
                if self._last is not None and self._last[0] == sandbox_id:
                    proof = self._last[1]
                else:
                    proof = await runtime.verify(sandbox, TreeMount(tree))
            finally:
                await runtime.stop(sandbox)
            check(proof)
            return proof
        except OSError as error:
            raise SandboxUnavailable(f"The data folder cannot be used: {error}.") from None
        finally:
            self._identities.give_back(sandbox_id, owner)
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                # The one that was tried may have had to pass through.
                close_folders(folder.parent)

    @contextmanager
    def _targets(self, name: str, spec: SandboxSpec) -> Iterator[dict[str, Any]]:
        """Real things of the host, for as long as the probe runs."""
        secret = secrets.token_hex(16)
        space = f"carrel-proof-{secret}"
        with (
            tempfile.TemporaryDirectory(prefix="proof-", dir=self._data) as other,
            socket.create_server(("127.0.0.1", 0)) as listener,
            socket.socket(socket.AF_UNIX) as abstract,
            _outside_process(secret) as outside,
            _shared_memory(spec, secret) as shared,
        ):
            canary = Path(other) / "tree" / "secret"
            canary.parent.mkdir()
            canary.write_text(secret)
            canary.chmod(0o644)
            canary.parent.chmod(0o755)
            os.chmod(other, 0o755)
            abstract.bind(f"\0{space}")
            abstract.listen()
            yield {
                # A container promises what a sandbox of bubblewrap does.
                "runtime": "landlock" if name == "landlock" else "bubblewrap",
                "network": str(spec.network),
                "forbidden_paths": [str(canary), str(self._data), *shared, *_host_home(spec)],
                "host_pid": outside,
                "host_pid_start": processes.start_time(outside),
                "host_loopback_port": listener.getsockname()[1],
                "abstract_socket": space,
                "unix_sockets": list(filter(os.path.exists, service_sockets())),
                "secret_env": secret,
                "own_root": spec.system is not None,
                "own_ids": spec.system is not None and spec.system.has_root,
                "range": spec.system is not None and spec.system.first_id is not None,
                "capabilities": 0 if spec.system is None else capabilities(spec.system),
                "scratch": str(spec.folder / "tmp") if name == "landlock" else "/tmp",
            }


@contextmanager
def _outside_process(secret: str) -> Iterator[int]:
    """A process of the host with a secret in its environment, which ends with us."""
    wait, go = os.pipe2(os.O_CLOEXEC)
    actions = [(os.POSIX_SPAWN_DUP2, wait, 0), (os.POSIX_SPAWN_CLOSE, go)]
    pid = os.posix_spawnp("cat", ["cat"], {"CARREL_PROOF": secret}, file_actions=actions)
    os.close(wait)
    try:
        yield pid
    finally:
        os.close(go)
        os.waitpid(pid, 0)


@contextmanager
def _shared_memory(spec: SandboxSpec, secret: str) -> Iterator[list[str]]:
    """A file there that everybody may read, unless the sandbox is shown the host's."""
    if any(SHARED_MEMORY.is_relative_to(bind.target) for bind in spec.binds):
        yield []
        return
    path = SHARED_MEMORY / f"carrel-proof-{secret}"
    try:
        path.write_text(secret)
        path.chmod(0o666)
    except OSError:
        yield []
        return
    try:
        yield [str(path)]
    finally:
        path.unlink()


def _host_home(spec: SandboxSpec) -> list[str]:
    """Unless the sandbox, or its image, has a home of its own by that name."""
    if spec.system is not None:
        return []
    home = str(Path.home())
    return [home] if home not in ("/", "/nonexistent", HOME) and Path(home).exists() else []


def _configuration(sandbox: Sandbox) -> tuple[object, ...]:
    spec = sandbox.spec
    shown = tuple((bind.target, bind.writable) for bind in spec.binds)
    root = "" if spec.system is None else f"root: {spec.system.has_root}, {spec.system.uid == 0}"
    kind = (root, bool(spec.pod))
    return (sandbox.runtime, spec.network, shown, kind, os.geteuid(), os.uname().release)


def check(proof: Proof) -> None:
    if proof.holds:
        return
    through = [f"{one.name} ({one.detail})" for one in proof.attempts if not one.refused]
    raise IsolationUnproven(
        f"{proof.runtime} does not hold on this machine: {', '.join(through[:5])}.",
        hint="Choose another runtime, or report this with the output of `carrel doctor`.",
        attempts=through,
    )


def _read_all(stream: object) -> bytes:
    if not isinstance(stream, int):
        raise TypeError("the probe's output is not a pipe")
    with open(stream, "rb", closefd=False) as file:
        return file.read()


# The choice of a runtime: the best that truly holds here

R = TypeVar("R", bound=Runtime)


async def choose_runtime(candidates: Sequence[R]) -> tuple[R, list[tuple[str, Availability]]]:
    """The first confining one that works, and what each that was tried said, in order. One that
    confines nothing is never chosen: it has to be asked for by name."""
    seen: list[tuple[str, Availability]] = []
    for runtime in candidates:
        if not runtime.capabilities.confines or runtime.capabilities.needs_image:
            continue
        found = await runtime.probe()
        seen.append((runtime.name, found))
        if found.available:
            return runtime, seen
    reasons = " ".join(f"{name}: {found.reason}" for name, found in seen)
    remedies = [found.remedy for _, found in seen if found.remedy]
    raise SandboxUnavailable(
        f"Nothing on this machine can confine an agent. {reasons}",
        hint="; or ".join(remedies) or "See docs/sandboxes.md for what a runtime needs.",
        seen={name: found.reason for name, found in seen},
    )
