"""A space that is shown another's files reads them as they are, and does nothing else to them."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.errors import SpaceInvalid, SpaceNotFound, StateConflict
from carrel.domain.runtimes import Command
from carrel.domain.spaces import Space
from carrel.service.family import Child
from tests.service.conftest import project, services
from tests.service.rig import family_of, make, request, run

__all__ = ["project", "services"]

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="each space has a user as root only")

ATTEMPTS = r"""
import os, ctypes, errno, socket
S = "/see/other"
libc = ctypes.CDLL(None, use_errno=True)
def sys_mount(flags):
    if libc.mount(b"none", S.encode(), b"", flags, b""):
        raise OSError(ctypes.get_errno(), "mount")
def umount():
    if libc.umount2(S.encode(), 2):
        raise OSError(ctypes.get_errno(), "umount")
def reopened(flags):
    fd = os.open(S + "/greet.py", os.O_RDONLY)
    os.close(os.open(f"/proc/self/fd/{fd}", flags))
def o_path():
    fd = os.open(S + "/greet.py", os.O_PATH)
    os.close(os.open(f"/proc/self/fd/{fd}", os.O_RDWR))
def unshared():
    if libc.unshare(0x10000000 | 0x00020000):
        raise OSError(ctypes.get_errno(), "unshare")
def mmapped():
    import mmap
    fd = os.open(S + "/greet.py", os.O_RDONLY)
    mmap.mmap(fd, 1, mmap.MAP_SHARED, mmap.PROT_WRITE)
def bound():
    socket.socket(socket.AF_UNIX).bind(S + "/sock")
tries = {
    "write": lambda: open(S + "/greet.py", "w"),
    "append": lambda: open(S + "/greet.py", "a"),
    "create": lambda: open(S + "/new", "x"),
    "world writable": lambda: open(S + "/open", "w"),
    "in an open folder": lambda: open(S + "/wide/new", "x"),
    "truncate": lambda: os.truncate(S + "/open", 0),
    "unlink": lambda: os.unlink(S + "/wide/f"),
    "rename": lambda: os.rename(S + "/wide/f", S + "/wide/g"),
    "mkdir": lambda: os.mkdir(S + "/wide/d"),
    "symlink": lambda: os.symlink("x", S + "/wide/s"),
    "link in": lambda: os.link("/workspace/greet.py", S + "/wide/l"),
    "link out": lambda: os.link(S + "/greet.py", "/workspace/stolen"),
    "mkfifo": lambda: os.mkfifo(S + "/wide/p"),
    "bind": bound,
    "chmod": lambda: os.chmod(S + "/greet.py", 0o777),
    "chmod open": lambda: os.chmod(S + "/open", 0o600),
    "chown": lambda: os.chown(S + "/greet.py", os.getuid(), os.getgid()),
    "utime": lambda: os.utime(S + "/open"),
    "setxattr": lambda: os.setxattr(S + "/open", "user.x", b"x"),
    "proc root": lambda: open("/proc/self/root/see/other/open", "w"),
    "proc 1 root": lambda: open("/proc/1/root/see/other/open", "w"),
    "proc cwd": lambda: (os.chdir(S), open("/proc/self/cwd/open", "w")),
    "proc fd": lambda: reopened(os.O_WRONLY),
    "proc fd trunc": lambda: reopened(os.O_RDWR | os.O_TRUNC),
    "proc fd path": o_path,
    "through a link": lambda: open("/workspace/link", "w"),
    "dot dot": lambda: open(S + "/../../see/other/open", "w"),
    "mmap": mmapped,
    "remount": lambda: sys_mount(32 | 4096),
    "mount over": lambda: sys_mount(4096),
    "umount": umount,
    "namespace": unshared,
    "private": lambda: open(S + "/private").read(),
}
os.symlink(S + "/open", "/workspace/link")
for name, attempt in tries.items():
    try:
        attempt()
    except OSError as error:
        continue
    print("DONE:", name)
print("end")
"""


async def seen(services: Services, project: Path) -> tuple[Space, Space]:
    other = await make(services, project, name="other")
    return other, await make(services, project, name="viewer", see=("other",))


@as_root
async def test_it_follows_the_others_work_and_changes_nothing(
    services: Services, project: Path
) -> None:
    other, viewer = await seen(services, project)
    assert viewer.sees == {"/see/other": other.space_id}
    script = (
        "echo live > new.txt; echo o > open; chmod 666 open; mkdir wide; echo f > wide/f;"
        " chmod 777 wide wide/f; echo p > private; chmod 600 private"
    )
    await run(services, other, script)
    look = "find . -printf '%p %m %s %T@ %u\n' | sort; cat greet.py open wide/f"
    before = (await run(services, other, look))[1]
    assert (await run(services, viewer, "cat /see/other/new.txt"))[1] == "live\n"
    told = await run(services, viewer, f"python3 - <<'END'\n{ATTEMPTS}\nEND")
    assert told[1] == "end\n", told
    assert (await run(services, other, look))[1] == before
    # What the one sees is no way for the other.
    assert "No such file" in (await run(services, other, "ls /see"))[1]
    proof = await services.spaces.verify(LOCAL, "viewer")
    assert proof.holds, proof


@as_root
async def test_the_other_is_stopped_and_removed(services: Services, project: Path) -> None:
    other, viewer = await seen(services, project)
    await run(services, other, "echo live > new.txt")
    await services.spaces.stop(LOCAL, "other")
    assert (await run(services, viewer, "cat /see/other/new.txt"))[1] == "live\n"
    running = await services.runs.start(viewer.space_id, Command(("sleep", "600")))
    await services.files.use(LOCAL, "other", lambda files: files.delete("new.txt"))
    with pytest.raises(StateConflict, match="viewer sees the files of other"):
        await services.spaces.remove(LOCAL, "other")
    await services.runs.signal(running.run_id, 9)
    await services.runs.wait(running.run_id)
    await services.spaces.remove(LOCAL, "other")
    assert services.journal.current(viewer.space_id).sees == {}
    told = await run(services, viewer, "ls /see; grep -c /see/ /proc/self/mountinfo; echo ok")
    assert told[1].startswith("0\nok") and "No such file" in told[1]
    # Nobody else has the tree mounted either.
    for table in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            assert other.space_id not in table.read_text(), table
        except OSError:
            continue


@as_root
async def test_a_forced_removal_ends_what_looks(services: Services, project: Path) -> None:
    _, viewer = await seen(services, project)
    running = await services.runs.start(viewer.space_id, Command(("sleep", "600")))
    await services.spaces.remove(LOCAL, "other", force=True)
    assert (await services.runs.wait(running.run_id)).exit is not None
    assert services.journal.current(viewer.space_id).sees == {}
    assert (await run(services, viewer, "echo ok"))[1] == "ok\n"


@as_root
async def test_a_daemon_that_died_after_the_removal(services: Services, project: Path) -> None:
    other, viewer = await seen(services, project)
    await services.spaces.remove(LOCAL, "other", force=True)
    half = services.journal.amend(viewer.space_id, sees={"/see/other": other.space_id})
    await services.journal.write(half)
    assert (await run(services, viewer, "ls /see || echo none"))[1].startswith("none")
    await services.spaces.refresh_seers()
    assert services.journal.current(viewer.space_id).sees == {}


@as_root
async def test_who_may_and_who_cannot(services: Services, project: Path) -> None:
    other, viewer = await seen(services, project)
    with pytest.raises(SpaceNotFound):
        await make(services, project, see=("nobody",))
    label = Caller("t", Scope(ScopeKind.LABEL, "team=x"))
    with pytest.raises(SpaceNotFound):
        await services.spaces.create(label, request(see=("other",), labels={"team": "x"}))
    with pytest.raises(SpaceInvalid, match="cannot show"):
        await make(services, project, see=("other",), runtime="process")
    assert {one.name for one in services.journal.all()} == {"other", "viewer"}, "nothing half made"
    child = await family_of(services).spawn(viewer.space_id, Child("child", "", "", ""))
    assert child.sees == {} and "none" in (await run(services, child, "ls /see || echo none"))[1]
    await services.spaces.remove(LOCAL, "viewer", force=True)
    assert other.space_id


async def test_it_is_refused_for_spaces_of_one_user(services: Services, project: Path) -> None:
    """As all are without a user of their own: nothing but the user keeps one from the sockets and
    pipes of the other."""
    other = await make(services, project, name="other")
    assert other.owner is not None
    opened = await services.open_spaces.of(other)
    draft = dataclasses.replace(other, space_id="sp_new", sees={"/see/other": other.space_id})
    with pytest.raises(SpaceInvalid, match="the same user"):
        await services.spaces._creator._check_seen(draft, opened.runtime, other.owner)
    assert "/see/other" not in [bind.target for bind in services.open_spaces.binds(draft)]
