"""Control groups with real processes in them, in whatever form this machine has them.

The whole file runs a second time in a kernel that has version 2 alone: see
`tests/linux/test_other_kernel.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from carrel.domain.errors import LimitsUnavailable, SandboxUnavailable
from carrel.domain.limits import LimitKind, Limits
from carrel.linux import cgroupfs
from carrel.linux.cgroupfs import Hierarchy
from carrel.runtimes.limits.cgroups import LIMITERS, CgroupHandle, Cgroups, Site, Survey, survey
from tests.accounts import PYTHON, Account, interpreter_for, run_as
from tests.load.patience import SLOWER

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="makes groups at the top of the tree"),
]

MIB = 1 << 20
WAIT_S = 20.0 * SLOWER
"""For a process to get somewhere: a fraction of a second, but for a busy machine, and for a
kernel that is a program on a busy machine."""

JOIN = 'for file in $PROCS; do echo 0 > "$file" || exit 99; done; exec "$@"'

Start = Callable[[CgroupHandle, Sequence[str]], "subprocess.Popen[str]"]
Make = Callable[..., CgroupHandle]
"""With its limits, and the name of its family."""


def until(condition: Callable[[], object]) -> None:
    """Looks again and again; for states that the kernel gives no notice of."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.005)


@pytest.fixture
def cgroups() -> Cgroups:
    return Cgroups()


@pytest.fixture
def make(cgroups: Cgroups) -> Iterator[Make]:
    made: list[CgroupHandle] = []

    def one(limits: Limits, family: str = "") -> CgroupHandle:
        made.append(cgroups.create(f"test-{secrets.token_hex(6)}", limits, family))
        return made[-1]

    yield one
    for handle in made:
        cgroups.kill(handle)
        cgroups.remove(handle)


def run_group(group: CgroupHandle, name: str) -> CgroupHandle:
    """A group for one command, as the launcher makes it: below the sandbox's in the tree that
    tracks commands."""
    if group.tracking is None:
        return group
    folder = Path(group.tracking) / name
    folder.mkdir(exist_ok=True)
    others = (path for path in group.procs if str(Path(path).parent) != group.tracking)
    procs = (*others, str(folder / "cgroup.procs"))
    return CgroupHandle(name, (str(folder),), procs, str(folder))


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a program that joins the groups first; `ready` on its output says it did."""
    started: list[subprocess.Popen[str]] = []

    def one(handle: CgroupHandle, argv: Sequence[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            ["sh", "-c", JOIN, "sh", *argv],
            env={**os.environ, "PROCS": " ".join(handle.procs)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield one
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            # Not read to its end: what the process has started may hold it open.
            assert pipe is not None
            pipe.close()


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", f"import os, signal, sys, time\n{code}"]


def ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "ready"


SLEEP = "print('ready', flush=True); time.sleep(300)"


def test_this_machine_limits_all_three(cgroups: Cgroups) -> None:
    support = cgroups.support()
    assert {one.kind for one in support} == {LimitKind.MEMORY, LimitKind.CPU, LimitKind.PIDS}
    assert all(one.enforced for one in support), support
    assert cgroups.support() is support
    assert not [
        path for site in survey().sites for path in site.folder.glob(f"probe-{os.getpid()}*")
    ]


FORKS = """
got = 0
for _ in range(30):
    try:
        if not os.fork():
            time.sleep(300)
    except OSError:
        break
    got += 1
print(got, flush=True)
time.sleep(300)
"""
"""As many processes as it gets, which stay."""


def test_a_family_has_its_processes_together(cgroups: Cgroups, make: Make, start: Start) -> None:
    family, limits = f"test-{secrets.token_hex(6)}", Limits(pids=12)
    handles = [make(limits, family) for _ in range(3)]
    got = []
    for handle in handles:
        output = start(handle, python(FORKS)).stdout
        assert output is not None
        got.append(output.readline().strip())
    # The third one is refused before it is Python; or has the last place and can fork no more.
    assert got[0] == "11" and set(got[1:]) <= {"", "0"}, got
    assert cgroups.family(family) == {one.group_id for one in handles} <= cgroups.known()
    assert (cgroups.pids_events(handles[0]) or 0) > 0


def test_a_family_has_its_memory_together(cgroups: Cgroups, make: Make, start: Start) -> None:
    family, limits = f"test-{secrets.token_hex(6)}", Limits(memory_bytes=96 * MIB)
    first, second = make(limits, family), make(limits, family)
    code = f"held = bytearray(60 * {MIB}); print('ready', flush=True); time.sleep(300)"
    ready(start(first, python(code)))
    start(second, python(code))
    until(lambda: (cgroups.memory_events(first) or 0) + (cgroups.memory_events(second) or 0))


def test_one_of_a_family_ends_and_the_others_go_on(
    cgroups: Cgroups, make: Make, start: Start
) -> None:
    """The first of them too; what it leaves is found again, and nothing is left by the last."""
    family, limits = f"test-{secrets.token_hex(6)}", Limits(memory_bytes=64 * MIB, pids=20, cpus=1)
    first = cgroups.create(family, limits, family)
    second = make(limits, family)
    above = [Path(folder).parent for folder in first.folders]
    child = start(run_group(second, "run"), python(SLEEP))
    ready(start(run_group(first, "run"), python(SLEEP)))
    ready(child)
    assert cgroups.kill(first)
    cgroups.remove(first)
    assert child.poll() is None and cgroups.load(family) is None
    found = Cgroups().load(second.group_id)
    assert found is not None and found.folders == second.folders
    assert child.pid in cgroups.members(found)
    assert (cgroups.usage(second).memory_bytes or 0) > 0
    assert cgroups.kill(second)
    cgroups.remove(second)
    assert not any(folder.exists() for folder in above)


def test_memory_beyond_the_limit_is_killed_and_counted(
    cgroups: Cgroups, make: Make, start: Start
) -> None:
    group = make(Limits(memory_bytes=48 * MIB))
    run = run_group(group, "run")
    process = start(run, python("data = bytearray(200 << 20); print('survived')"))
    assert process.communicate(timeout=WAIT_S)[0] == ""
    assert process.returncode == -signal.SIGKILL
    assert cgroups.memory_events(group) == 1
    peak = cgroups.usage(group).memory_peak_bytes
    assert peak is not None and 24 * MIB < peak <= 48 * MIB


def test_processes_beyond_the_limit_are_refused_and_counted(
    cgroups: Cgroups, make: Make, start: Start
) -> None:
    group = make(Limits(pids=8))
    code = """
children = 0
try:
    while children < 50:
        if os.fork() == 0:
            signal.pause()
        children += 1
except OSError as error:
    print(error.errno, children, flush=True)
time.sleep(300)
"""
    process = start(run_group(group, "run"), python(code))
    assert process.stdout is not None
    assert process.stdout.readline().split() == ["11", "7"]
    assert cgroups.pids_events(group) == 1
    assert cgroups.usage(group).pids == 8
    assert len(cgroups.members(group)) == 8


def test_processor_time_is_rationed_and_counted(cgroups: Cgroups, make: Make, start: Start) -> None:
    group = make(Limits(cpus=0.1))
    process = start(group, python("print('ready', flush=True)\nwhile True: pass"))
    ready(process)
    until(lambda: (cgroups.cpu_throttled(group) or 0) >= 3)
    used = cgroups.usage(group).cpu_seconds
    assert used is not None and used > 0.02


def test_limits_that_are_not_asked_for_are_not_set(cgroups: Cgroups, make: Make) -> None:
    group = make(Limits())
    for name, files in (
        ("pids", ("pids.max",)),
        ("memory", ("memory.max", "memory.limit_in_bytes")),
    ):
        folder = group.folder(name)
        assert folder is not None
        value = "".join(cgroupfs.read(folder, file) for file in files).strip()
        assert value == "max" or int(value) > 1 << 60


def test_limits_can_be_set_anew(cgroups: Cgroups, make: Make) -> None:
    group = make(Limits(memory_bytes=64 * MIB, pids=5))
    for size in (128 * MIB, 32 * MIB):
        assert cgroups.create(group.group_id, Limits(memory_bytes=size)) == group
        folder = group.folder("memory")
        assert folder is not None
        names = ("memory.max", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
        found = {cgroupfs.read_number(folder, name) for name in names} - {None}
        assert found == {size}


DETACHED = """
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('ready', flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(300)
"""


def test_a_command_is_killed_with_all_it_started(
    cgroups: Cgroups, make: Make, start: Start
) -> None:
    """Twice forked, in a session of its own, stopped: still its own, and only it goes."""
    group = make(Limits(pids=50))
    first, second = run_group(group, "first"), run_group(group, "second")
    other = start(second, python(SLEEP))
    ready(start(first, python(DETACHED)))
    ready(other)
    # Its parents may not have ended yet when it speaks.
    until(lambda: len(cgroups.members(first)) == 1)
    assert len(cgroups.members(group)) == 2
    assert cgroups.kill(first)
    assert cgroups.members(first) == frozenset()
    assert cgroups.members(group) == {other.pid} == cgroups.members(second)
    cgroups.remove(first)
    assert other.poll() is None
    assert cgroups.kill(group)
    assert other.wait(WAIT_S) == -signal.SIGKILL


BOMB = """
print('ready', flush=True)
while True:
    try:
        os.fork()
    except OSError:
        pass
"""


def test_a_fork_bomb_is_ended(cgroups: Cgroups, make: Make, start: Start) -> None:
    group = make(Limits(pids=60, cpus=0.5))
    ready(start(run_group(group, "run"), python(BOMB)))
    until(lambda: cgroups.pids_events(group))
    assert cgroups.kill(group)
    assert cgroups.members(group) == frozenset()


def sites_of(version: int, controller: str) -> list[Site]:
    return [
        site
        for site in survey().sites
        if site.version == version and controller in site.controllers
    ]


def only(controller: str) -> Survey:
    """As a machine whose only tree is that of one controller of version 1."""
    trees = [
        tree
        for tree in cgroupfs.hierarchies()
        if tree.version == 1 and controller in tree.controllers
    ]
    if not trees:
        pytest.skip("there is no version 1 here")
    return survey(tuple(trees))


@pytest.mark.parametrize("controller", ["freezer", "pids"])
def test_version_1_kills_without_a_kill_file(controller: str, start: Start) -> None:
    found = only(controller)
    cgroups = Cgroups(lambda: found)
    # The bomb is held by a limit of its own, for where the tree has none.
    bounded = Cgroups().create(f"test-{secrets.token_hex(6)}", Limits(pids=40, cpus=0.5))
    group = cgroups.create(f"test-{secrets.token_hex(6)}", Limits(pids=40))
    try:
        run = run_group(group, "run")
        others = tuple(path for path in bounded.procs if f"/{controller}/" not in path)
        both = dataclasses.replace(run, procs=(*others, *run.procs))
        ready(start(run, python(DETACHED)))
        ready(start(both, python(BOMB)))
        until(lambda: len(cgroups.members(run)) > 20)
        assert cgroups.kill(run)
        assert cgroups.members(group) == frozenset()
    finally:
        for owner, handle in ((cgroups, group), (Cgroups(), bounded)):
            owner.kill(handle)
            owner.remove(handle)
        if controller == "freezer":  # used by this test alone, where version 2 is there too
            with contextlib.suppress(OSError):
                found.sites[0].folder.rmdir()


def test_removing(cgroups: Cgroups, make: Make, start: Start) -> None:
    group = make(Limits(pids=10))
    run = run_group(group, "run")
    process = start(run, python(SLEEP))
    ready(process)
    with pytest.raises(SandboxUnavailable, match=str(process.pid)):
        cgroups.remove(group, timeout=0.1)
    process.kill()
    cgroups.remove(group)
    assert not any(Path(folder).exists() for folder in group.folders)
    cgroups.remove(group)
    cgroups.remove(run)
    assert cgroups.kill(group)
    assert cgroups.members(group) == frozenset()
    assert cgroups.usage(group).memory_bytes is None


def test_handles_are_found_again(cgroups: Cgroups, make: Make) -> None:
    group = make(Limits(pids=10))
    later = Cgroups()
    assert later.load(group.group_id) == group
    assert group.group_id in later.known()
    assert later.load("test-nothing") is None
    # Half of it: the rest was removed before someone died.
    for folder in group.folders[1:]:
        os.rmdir(folder)
    half = later.load(group.group_id)
    assert half is not None and half.folders == group.folders[:1]
    later.remove(half)


def test_a_parent_that_was_removed_is_made_again(cgroups: Cgroups, tmp_path: Path) -> None:
    (tmp_path / "carrel").mkdir()
    looks: list[int] = []

    def look() -> Survey:
        looks.append(1)
        (tmp_path / "carrel").mkdir(exist_ok=True)
        return Survey((Site(2, tmp_path / "carrel", frozenset({"freezer"})),), ())

    found = Cgroups(look)
    found.create("one", Limits())
    found.create("two", Limits())
    assert len(looks) == 1
    for folder in (tmp_path / "carrel/one", tmp_path / "carrel/two", tmp_path / "carrel"):
        folder.rmdir()
    found.create("three", Limits())
    assert len(looks) == 2


@pytest.mark.parametrize("name", ["", "..", "a/b", "memory.max", "x" * 200])
def test_bad_names(cgroups: Cgroups, name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        cgroups.create(name, Limits())


def test_a_refused_limit_leaves_nothing(cgroups: Cgroups) -> None:
    name = f"test-{secrets.token_hex(6)}"
    with pytest.raises(LimitsUnavailable, match=name):
        cgroups.create(name, Limits(pids=-5))
    assert cgroups.load(name) is None


def test_without_any_groups() -> None:
    cgroups = Cgroups(lambda: survey(()))
    assert not any(one.enforced for one in cgroups.support())
    assert "No control groups" in cgroups.support()[0].how
    group = cgroups.create("test-none", Limits(memory_bytes=MIB))
    run = run_group(group, "run")
    assert group.folders == group.procs == run.procs == ()
    assert cgroups.kill(run) and cgroups.members(group) == frozenset()
    assert set(dataclasses.asdict(cgroups.usage(group)).values()) == {None}
    assert cgroups.memory_events(group) is cgroups.cpu_throttled(group) is None
    cgroups.remove(group)


def test_stirring_moves_nobody(cgroups: Cgroups, make: Make, start: Start) -> None:
    """Also when we were moved since it was done last."""
    code = """
import os, sys
from pathlib import Path
from carrel.linux import cgroupfs
from carrel.runtimes.limits.cgroups import Cgroups
cgroups = Cgroups()
for line in sys.stdin:
    cgroupfs.join(line.split())
    before = Path("/proc/self/cgroup").read_text()
    cgroups.stir()
    print(Path("/proc/self/cgroup").read_text() == before, flush=True)
"""
    one, two = make(Limits()), make(Limits())
    lines = ["", " ".join(one.procs), " ".join(two.procs), ""]
    done = subprocess.run(
        [sys.executable, "-c", code],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["True"] * len(lines), done.stderr
    Cgroups(lambda: survey(())).stir()


def test_a_tree_that_is_read_only(tmp_path: Path) -> None:
    found = survey((Hierarchy(2, frozenset(), tmp_path, tmp_path, writable=False),))
    assert found.sites == ()
    assert "read-only" in found.refusals[0]


def test_version_2_files(tmp_path: Path) -> None:
    names = ("memory.max", "memory.swap.max", "cpu.max", "pids.max")
    for name in names:
        (tmp_path / name).touch()
    for limit in LIMITERS.values():
        limit(tmp_path, Limits(memory_bytes=MIB, cpus=1.5, pids=7))
    assert [(tmp_path / name).read_text() for name in names] == [
        str(MIB),
        "0",
        "150000 100000",
        "7",
    ]


# Ordinary users

DELEGATED = """
import dataclasses, json, os, subprocess, sys
from carrel.domain.limits import Limits
from carrel.runtimes.limits.cgroups import Cgroups
cgroups = Cgroups()
group = cgroups.create("delegated", Limits(memory_bytes=64 << 20, pids=9, cpus=1))
folder = group.tracking + "/run"
os.mkdir(folder)
others = [path for path in group.procs if os.path.dirname(path) != group.tracking]
run = dataclasses.replace(group, folders=(folder,), procs=(*others, folder + "/cgroup.procs"))
join = 'for file in $PROCS; do echo 0 > "$file" || exit 99; done; echo ready; read line'
child = subprocess.Popen(["sh", "-c", join], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         env={**os.environ, "PROCS": " ".join(run.procs)})
ready = child.stdout.readline().decode().strip()
answer = {
    "support": {one.kind: [one.enforced, one.how] for one in cgroups.support()},
    "ready": ready,
    "member": child.pid in cgroups.members(run),
    "killed": cgroups.kill(group),
    "status": child.wait(20),
    "folders": group.folders,
}
cgroups.remove(group)
answer["left"] = [folder for folder in group.folders if os.path.exists(folder)]
print(json.dumps(answer))
"""


def delegate(folder: Path, user: Account) -> None:
    """What systemd does for a user's part of the tree."""
    folder.mkdir()
    os.chown(folder, user.uid, user.gid)
    for name in ("cgroup.procs", "cgroup.subtree_control", "cgroup.threads", "tasks"):
        if (folder / name).exists():
            os.chown(folder / name, user.uid, user.gid)


@pytest.fixture
def delegated(ordinary_user: Account) -> Iterator[list[Path]]:
    """A group of the user in every tree, with the controllers that there are."""
    # Where systemd is, only what is named like its units counts.
    name = f"test-{secrets.token_hex(6)}.scope"
    wanted = {"memory", "pids", "cpu", "freezer"}
    folders = []
    try:
        for tree in cgroupfs.hierarchies():
            if tree.version == 2 or tree.controllers & wanted:
                if tree.version == 2:
                    cgroupfs.enable(tree.mount, tree.controllers & wanted)
                delegate(tree.mount / name, ordinary_user)
                folders.append(tree.mount / name)
        yield folders
    finally:
        for folder in folders:
            cgroupfs.kill(folder)
            assert cgroupfs.remove(folder)


def run_delegated(user: Account, folders: list[Path], code: str) -> dict[str, Any]:
    """The code runs as the user, in the user's groups: root joins them, and becomes the user."""
    interpreter = interpreter_for(user)
    become = ["setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups"]
    result = subprocess.run(
        ["sh", "-c", JOIN, "sh", *become, interpreter.executable, "-c", code],
        env={
            "PROCS": " ".join(str(folder / cgroupfs.PROCS) for folder in folders),
            "PATH": os.environ.get("PATH", os.defpath),
            "PYTHONPATH": interpreter.pythonpath,
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.stdout.strip(), result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_an_ordinary_user_with_delegated_groups(
    delegated: list[Path], ordinary_user: Account
) -> None:
    found = run_delegated(ordinary_user, delegated, DELEGATED)
    assert found["ready"] == "ready"
    assert found["member"] and found["killed"] and found["left"] == []
    assert found["status"] == -signal.SIGKILL
    assert all(enforced for enforced, _how in found["support"].values()), found
    below = [str(folder) for folder in delegated]
    assert all(any(one.startswith(folder) for folder in below) for one in found["folders"])


def test_an_ordinary_user_without(ordinary_user: Account) -> None:
    code = """
import json
from carrel.domain.limits import Limits
from carrel.runtimes.limits.cgroups import Cgroups
cgroups = Cgroups()
print(json.dumps([[one.enforced, one.how] for one in cgroups.support()]))
"""
    result = run_as(ordinary_user, [PYTHON, "-c", code])
    assert result.returncode == 0, result.stderr
    for enforced, how in json.loads(result.stdout):
        assert not enforced
        assert "Permission denied" in how or "belongs to this user" in how, how


def test_a_group_with_processes_of_its_own_steps_aside() -> None:
    """As in a container, whose top group holds its processes: version 2 then hands no
    controller on until they have moved down."""
    tree = next((one for one in cgroupfs.hierarchies() if one.version == 2), None)
    if tree is None or not {"memory", "pids", "cpu"} <= tree.controllers:
        pytest.skip("version 2 has no controllers here")
    cgroupfs.enable(tree.mount, tree.controllers)
    top = tree.mount / f"test-{secrets.token_hex(6)}.scope"
    top.mkdir()
    # As systemd marks what it has delegated; elsewhere nobody looks.
    os.setxattr(top, "trusted.delegate", b"1")
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    try:
        cgroupfs.join([str(top / cgroupfs.PROCS)], process.pid)
        found = survey((Hierarchy(2, tree.controllers, top, top),))
        assert {"memory", "pids", "cpu"} <= found.sites[0].controllers
        assert cgroupfs.members(top / "carrel-self") == {process.pid}
    finally:
        process.communicate()
        assert cgroupfs.remove(top)


# Where the trees are

SYSTEMD = """\
25 30 0:23 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate
26 30 0:24 / /proc rw - proc proc rw
"""
VERSION_1 = """\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / {mount}/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
33 31 0:30 /docker/abc {mount}/with\\040space ro,relatime - cgroup cgroup rw,memory
34 31 0:31 / {mount}/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
35 31 0:32 /../.. {mount}/pids rw,relatime - cgroup cgroup rw,pids
"""


def test_trees_are_read_from_proc(tmp_path: Path) -> None:
    mount = tmp_path / "cgroup"
    for name in ("cpu,cpuacct/user", "with space/inner", "pids"):
        (mount / name).mkdir(parents=True)
    (tmp_path / "mountinfo").write_text(VERSION_1.format(mount=mount))
    (tmp_path / "cgroup.txt").write_text("")
    process = tmp_path / "process"
    process.mkdir()
    (process / "mountinfo").write_text(VERSION_1.format(mount=mount))
    (process / "cgroup").write_text(
        "4:memory:/docker/abc/inner\n3:cpu,cpuacct:/user\n2:pids:/\n1:name=systemd:/x\n0::/\n"
    )
    found = {frozenset(tree.controllers): tree for tree in cgroupfs.hierarchies(process)}
    both = found[frozenset({"cpu", "cpuacct"})]
    assert both.own == mount / "cpu,cpuacct/user" and both.writable
    assert all(cgroupfs.own_folder(tree, process) == tree.own for tree in found.values())
    memory = found[frozenset({"memory"})]
    assert memory.own == mount / "with space/inner" and not memory.writable
    assert found[frozenset({"pids"})].own is None


def test_a_systemd_machine(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text(SYSTEMD)
    (tmp_path / "cgroup").write_text("0::/user.slice/user-1000.slice/session-1.scope\n")
    (tree,) = cgroupfs.hierarchies(tmp_path)
    assert (tree.version, tree.mount) == (2, Path("/sys/fs/cgroup"))
