"""A sandbox that is set up while its tree is still being made."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from carrel.domain.limits import Limits
from carrel.domain.runtimes import EagerRuntime, Network, Sandbox, SandboxSpec
from carrel.domain.trees import TreeMount
from carrel.launcher.messages import failure
from carrel.linux import mounts
from tests.conformance.runtime_rig import WAIT_S, Rig, open_rig
from tests.launcher.disks import root_only

pytestmark = root_only


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with open_rig(tmp_path, "bubblewrap") as opened:
        yield opened


def _begin(rig: Rig, network: Network = Network.NONE) -> SandboxSpec:
    spec = rig.spec(Limits(), network, (), {})
    assert isinstance(rig.runtime, EagerRuntime)
    rig.runtime.begin(spec)
    return spec


def _mount(spec: SandboxSpec) -> TreeMount:
    return TreeMount(spec.tree, detached=partial(mounts.clone_mount, str(spec.tree)))


async def _start(rig: Rig, spec: SandboxSpec, *, wait: bool = False) -> Sandbox:
    sandbox = await rig.runtime.start(spec, _mount(spec), wait=wait)
    rig.sandboxes.append(sandbox)
    return sandbox


async def _prove(rig: Rig) -> None:
    """After this, starts need not wait."""
    await rig.start()


async def _sandboxes(rig: Rig) -> int:
    return int((await rig.launcher.ask("hello", {}, []))[0]["sandboxes"])


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0)


def _members(spec: SandboxSpec) -> list[int]:
    """Live processes with its user's id."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            status = dict(
                line.split(":\t", 1)
                for line in Path(f"/proc/{name}/status").read_text().splitlines()
            )
            if status["Uid"].split()[0] == str(spec.owner.uid) and status["State"][0] != "Z":
                found.append(int(name))
    return found


async def test_the_tree_comes_later(rig: Rig) -> None:
    await _prove(rig)
    spec = _begin(rig)
    await _until(lambda: len(_members(spec)) >= 3)
    (spec.tree / "here").write_text("before\n")
    sandbox = await _start(rig, spec)
    done = await rig.sh(sandbox, "cat here && echo after > there && pwd")
    assert (done.exit.code, done.out, done.err) == (0, "before\n/workspace\n", "")
    assert (spec.tree / "there").read_text() == "after\n"
    assert (spec.tree / "there").stat().st_uid == spec.owner.uid
    flags = await rig.sh(sandbox, "grep ' /workspace ' /proc/self/mountinfo")
    (line,) = flags.out.splitlines()
    assert {"rw", "nosuid", "nodev"} <= set(line.split()[5].split(","))


async def test_many_at_once_keep_their_trees_apart(rig: Rig) -> None:
    await _prove(rig)
    specs = [_begin(rig) for _ in range(8)]
    for number, spec in enumerate(specs):
        (spec.tree / "number").write_text(f"{number}\n")
    sandboxes = await asyncio.gather(*(_start(rig, spec) for spec in specs))
    ended = await asyncio.gather(*(rig.sh(one, "cat number; ls") for one in sandboxes))
    assert [one.out for one in ended] == [f"{number}\nnumber\n" for number in range(8)]


@pytest.mark.parametrize("network", list(Network))
async def test_the_walls_are_the_same(rig: Rig, network: Network) -> None:
    spec = _begin(rig, network)
    sandbox = await _start(rig, spec, wait=True)
    late = await rig.runtime.verify(sandbox, _mount(spec))
    assert late.holds
    whole = await rig.start(network=network)
    usual = await rig.runtime.verify(whole, TreeMount(whole.spec.tree))
    assert usual.holds and len(late.attempts) == len(usual.attempts)
    table = "cut -d' ' -f4-6 /proc/self/mountinfo | grep -v ' /workspace ' | sort"
    seen = [(await rig.sh(one, table)).out for one in (sandbox, whole)]
    for number, one in enumerate((sandbox, whole)):
        seen[number] = seen[number].replace(one.spec.sandbox_id, "ID")
    assert seen[0] == seen[1]


async def test_no_tree_ever_comes(rig: Rig) -> None:
    spec = _begin(rig)
    await rig.runtime.stop(Sandbox("bubblewrap", spec), grace_s=0.1)
    assert await _sandboxes(rig) == 0
    assert _members(spec) == []
    rig.identities.give_back(spec.sandbox_id, spec.owner)


async def test_what_waits_too_long_ends_and_is_set_up_in_one_go(tmp_path: Path) -> None:
    async with open_rig(tmp_path, "bubblewrap", linger_s=1.0) as rig:
        await _prove(rig)
        spec = _begin(rig)
        await _until(lambda: len(_members(spec)) >= 3)
        await _until(lambda: not _members(spec))
        (spec.tree / "here").write_text("yes\n")
        sandbox = await _start(rig, spec)
        assert (await rig.sh(sandbox, "cat here")).out == "yes\n"


async def test_what_gets_no_tree_is_ended_before_another_is_set_up(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the other would wait for the tree as long as the first does."""
    await _prove(rig)
    ask, refused = rig.launcher.ask, failure("place", "nobody waits for it")

    async def refuse(op: str, *rest: Any, **named: Any) -> Any:
        return ({"problem": refused}, []) if op == "place" else await ask(op, *rest, **named)

    monkeypatch.setattr(rig.launcher, "ask", refuse)
    spec = _begin(rig)
    await _until(lambda: len(_members(spec)) >= 3)
    (spec.tree / "here").write_text("yes\n")
    async with asyncio.timeout(WAIT_S):
        sandbox = await _start(rig, spec, wait=True)
    assert (await rig.sh(sandbox, "cat here")).out == "yes\n"


@pytest.mark.parametrize("wait", [False, True])
async def test_somebody_kills_what_was_begun(rig: Rig, wait: bool) -> None:
    await _prove(rig)
    spec = _begin(rig)
    await _until(lambda: len(_members(spec)) >= 3)
    for pid in _members(spec):
        # One that goes takes others along.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    await _until(lambda: not _members(spec))
    (spec.tree / "here").write_text("yes\n")
    sandbox = await _start(rig, spec, wait=wait)
    assert (await rig.sh(sandbox, "cat here")).out == "yes\n"


async def test_the_launcher_dies_in_between(rig: Rig) -> None:
    await _prove(rig)
    spec = _begin(rig)
    await _until(lambda: len(_members(spec)) >= 3)
    await rig.kill_launcher()
    (spec.tree / "here").write_text("yes\n")
    sandbox = await _start(rig, spec, wait=True)
    assert (await rig.sh(sandbox, "cat here")).out == "yes\n"
    await rig.runtime.stop(sandbox, grace_s=0.1)
    assert _members(spec) == []


async def test_a_mount_for_nobody_is_refused(rig: Rig) -> None:
    sandbox = await rig.start()
    for sandbox_id in (sandbox.spec.sandbox_id, "sp_unknown"):
        mount = mounts.clone_mount(str(sandbox.spec.tree))
        try:
            reply, _ = await rig.launcher.ask("place", {"sandbox_id": sandbox_id}, [mount])
        finally:
            os.close(mount)
        assert reply["problem"]["step"] == "cold"
