"""Many spaces come and go, and the machine is as it was."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from carrel.app import App, open_app
from carrel.config import Settings
from carrel.domain.ids import new_id
from carrel.domain.limits import Limits
from carrel.domain.projects import BaseRequest, Project, ProjectKind
from carrel.domain.runtimes import Command, Runtime, SandboxSpec
from carrel.domain.trees import Base, TreeDriver, TreeRequest
from carrel.runtimes.limits.cgroups import Cgroups
from tests.folders import mounts_below
from tests.sampling import examples

CYCLES = examples(50, exhaustive=1000)
"""What only every tenth leaves would still be more than what is allowed to stay open."""


def _children(launcher: int) -> list[str]:
    """Zombies or not; those that wait to be needed are there from the start."""
    below = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return [pid for pid in below if _state(pid) == "Z" or "bwrap" in _name(pid)]


def _state(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def _name(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


async def _cycle(app: App, driver: TreeDriver, runtime: Runtime, base: Base, number: int) -> str:
    space = new_id("sp")
    folder = app.settings.data / "spaces" / space
    folder.mkdir(mode=0o711)
    owner = app.identities.take(space)
    tree = driver.create(TreeRequest(space, base, folder, owner))
    limits = Limits(memory_bytes=1 << 30, pids=64)
    with driver.mount(tree) as mount:
        spec = SandboxSpec(space, folder, tree.path, owner, limits=limits)
        sandbox = await runtime.start(spec, mount)
        command = Command(("/bin/sh", "-c", f"echo {number} > made; (setsid sleep 60 &) ; true"))
        run = await runtime.run(sandbox, mount, command)
        assert (await run.wait()).code == 0
        run.close()
    await runtime.stop(sandbox, grace_s=0.0)
    assert [change.path for change in driver.changes(tree)] == ["made"]
    driver.drop(tree)
    app.identities.give_back(space, owner)
    shutil.rmtree(folder)
    return space


@pytest.mark.timeout(400)
async def test_cycles_leave_nothing(data: Path) -> None:
    project = data / "checkout"
    project.mkdir()
    (project / "file").write_text("content")
    groups = Cgroups()
    async with open_app(Settings(data=data / "data")) as app:
        driver, runtime = await app.driver(), await app.runtime()
        base = app.bases.build(BaseRequest(Project(ProjectKind.FOLDER, str(project))))
        launcher = (await app.launcher.ask("hello", {}, []))[0]["pid"]
        await _cycle(app, driver, runtime, base, 0)
        open_before = len(os.listdir(f"/proc/{launcher}/fd")), len(os.listdir("/proc/self/fd"))
        made = {await _cycle(app, driver, runtime, base, number) for number in range(CYCLES)}
        open_after = len(os.listdir(f"/proc/{launcher}/fd")), len(os.listdir("/proc/self/fd"))
        hello = (await app.launcher.ask("hello", {}, []))[0]
        assert (hello["runs"], hello["sandboxes"], hello["held"]) == (0, 0, 0)
        assert open_after[0] <= open_before[0] + 8 and open_after[1] <= open_before[1] + 8
        assert _children(launcher) == []
        assert mounts_below(data) == []
        assert list((data / "data" / "spaces").iterdir()) == []
        assert list((data / "data" / "uids").iterdir()) == [] if os.geteuid() == 0 else True
        assert list((data / "data" / "launcher" / "holders").iterdir()) == []
        assert not groups.known() & made
        assert app.launcher.shutdown() == 0
    assert _state(str(launcher)) in ("gone", "Z")  # the zombie is for the machine's init
