"""Landlock by its rules, each tried by a real process, on this kernel and as an old one."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from carrel.linux import landlock
from carrel.linux.landlock import Rules
from tests.accounts import Account, interpreter_for
from tests.linux.confined import Confinement

ABI = landlock.abi()
pytestmark = pytest.mark.skipif(ABI == 0, reason="this kernel has no Landlock")

SYSTEM = ["/usr", "/bin", "/lib", "/lib64", sys.base_prefix, sys.prefix]

TRIES = """
import errno, socket, signal
def attempt(do):
    try:
        do()
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]
"""


def rules(**given: Any) -> Rules:
    base: Rules = {
        "execute": SYSTEM,
        "read": ["/proc"],
        "write": [],
        "device": [],
        "connect": [],
        "tcp_bind": None,
        "tcp_connect": None,
    }
    return {**base, **given}  # type: ignore[typeddict-item]


@pytest.fixture
def folder(data: Path, ordinary_user: Account) -> Path:
    """`in`, `in2` and `out`, all of the same user: nothing but Landlock refuses."""
    for name in ("in", "in2", "out"):
        (data / name).mkdir()
        (data / name / "file").write_text(name)
        (data / name / "sub").mkdir()
        for path in (data / name, data / name / "file", data / name / "sub"):
            os.chown(path, ordinary_user.uid, ordinary_user.gid)
    return data


def confined(user: Account, given: Rules | None, abi: int | None = None) -> Confinement:
    as_root = os.geteuid() == 0
    return Confinement(
        rules=given,
        abi=abi,
        uid=user.uid if as_root else None,
        gid=user.gid if as_root else None,
        interpreter=interpreter_for(user).executable,
    )


def tried(confinement: Confinement, tries: dict[str, str], *arguments: str) -> dict[str, str]:
    """Each try is an expression; answers "done" or the name of the errno."""
    body = ", ".join(f"{json.dumps(name)}: attempt(lambda: {do})" for name, do in tries.items())
    found: dict[str, str] = confinement.python(f"{TRIES}\nanswer = {{{body}}}", *arguments)
    return found


FILES = {
    "read inside": "open(f'{args[0]}/in/file').read()",
    "write inside": "open(f'{args[0]}/in/new', 'w').write('x')",
    "list inside": "os.listdir(f'{args[0]}/in')",
    "folder inside": "os.mkdir(f'{args[0]}/in/made')",
    "move between": "os.rename(f'{args[0]}/in/new', f'{args[0]}/in2/new')",
    "link between": "os.link(f'{args[0]}/in/file', f'{args[0]}/in2/link')",
    "socket inside": "socket.socket(socket.AF_UNIX).bind(f'{args[0]}/in/s')",
    "fifo inside": "os.mkfifo(f'{args[0]}/in/fifo')",
    "remove inside": "os.rmdir(f'{args[0]}/in/made')",
    "truncate inside": "os.truncate(f'{args[0]}/in/file', 0)",
}
OUTSIDE = {
    "read outside": "open(f'{args[0]}/out/file').read()",
    "write outside": "open(f'{args[0]}/out/file', 'a').write('x')",
    "make outside": "open(f'{args[0]}/out/new', 'w')",
    "list outside": "os.listdir(f'{args[0]}/out')",
    "remove outside": "os.unlink(f'{args[0]}/out/file')",
    "truncate outside": "os.truncate(f'{args[0]}/out/file', 0)",
    "by a symlink": "(os.symlink(f'{args[0]}/out', f'{args[0]}/in/ln{os.getpid()}'), "
    "open(f'{args[0]}/in/ln{os.getpid()}/file'))",
    "by dots": "open(f'{args[0]}/in/../out/file')",
    "by proc": "open(f'/proc/self/root{args[0]}/out/file')",
    "move out": "os.rename(f'{args[0]}/in/file', f'{args[0]}/out/moved')",
    "move in": "os.rename(f'{args[0]}/out/file', f'{args[0]}/in/moved')",
    "link out": "os.link(f'{args[0]}/in/file', f'{args[0]}/out/linked')",
    "link in": "os.link(f'{args[0]}/out/file', f'{args[0]}/in/linked')",
    "exchange": "os.rename(f'{args[0]}/in/sub', f'{args[0]}/out/sub')",
}


def test_what_is_granted_works(folder: Path, ordinary_user: Account) -> None:
    given = rules(write=[f"{folder}/in", f"{folder}/in2"])
    found = tried(confined(ordinary_user, given), FILES, str(folder))
    assert found == dict.fromkeys(FILES, "done")


def test_what_is_not_granted_is_refused(folder: Path, ordinary_user: Account) -> None:
    given = rules(write=[f"{folder}/in", f"{folder}/in2"])
    found = tried(confined(ordinary_user, given), OUTSIDE, str(folder))
    assert set(found.values()) <= {"EACCES", "EXDEV", "EPERM"}, found
    assert (folder / "out/file").read_text() == "out"
    plain = tried(
        confined(ordinary_user, None),
        {name: do for name, do in OUTSIDE.items() if "remove" not in name and "move" not in name},
        str(folder),
    )
    assert set(plain.values()) == {"done"}, plain


def test_reading_is_not_writing_nor_running(folder: Path, ordinary_user: Account) -> None:
    script = folder / "out/script"
    script.write_text("#!/bin/sh\nexit 0\n")
    script.chmod(0o755)
    tries = {
        "read": "open(f'{args[0]}/out/file')",
        "list": "os.listdir(f'{args[0]}/out')",
        "write": "open(f'{args[0]}/out/file', 'a')",
        "make": "open(f'{args[0]}/out/new', 'w')",
        "run": "__import__('subprocess').run([f'{args[0]}/out/script'], check=True)",
    }
    reader = confined(ordinary_user, rules(read=["/proc", f"{folder}/out"]))
    refused = dict.fromkeys(("write", "make"), "EACCES")
    assert tried(reader, tries, str(folder)) == {
        "read": "done",
        "list": "done",
        "run": "EACCES",
        **refused,
    }
    runner = confined(ordinary_user, rules(execute=[*SYSTEM, f"{folder}/out"]))
    assert tried(runner, tries, str(folder)) == dict.fromkeys(("read", "list", "run"), "done") | (
        refused
    )


def test_rules_for_files_and_for_what_is_missing(folder: Path, ordinary_user: Account) -> None:
    given = rules(
        write=[f"{folder}/in/file", f"{folder}/nowhere", f"{folder}/in/file/below"],
        read=["/proc", f"{folder}/out/file"],
        device=["/dev/null", "/dev/nothing"],
    )
    tries = {
        "write the file": "open(f'{args[0]}/in/file', 'w').write('x')",
        "read the other": "open(f'{args[0]}/out/file').read()",
        "write the other": "open(f'{args[0]}/out/file', 'a')",
        "beside it": "open(f'{args[0]}/in/new', 'w')",
        "null": "open('/dev/null', 'w').write('x')",
        "zero": "open('/dev/zero')",
    }
    assert tried(confined(ordinary_user, given), tries, str(folder)) == {
        "write the file": "done",
        "read the other": "done",
        "write the other": "EACCES",
        "beside it": "EACCES",
        "null": "done",
        "zero": "EACCES",
    }


@pytest.mark.skipif(landlock.ABI_IOCTL > ABI, reason="needs ABI 5")
def test_devices_are_controlled_only_where_granted(ordinary_user: Account) -> None:
    tries = {
        "pty": "__import__('fcntl').ioctl(os.open('/dev/ptmx', os.O_RDWR), 0x80045430, bytes(4))"
    }
    granted = rules(device=["/dev/ptmx", "/dev/pts"])
    assert tried(confined(ordinary_user, granted), tries) == {"pty": "done"}
    written = rules(write=["/dev/ptmx", "/dev/pts"])
    assert tried(confined(ordinary_user, written), tries) == {"pty": "EACCES"}


@pytest.mark.skipif(landlock.ABI_TCP > ABI, reason="needs ABI 4")
def test_tcp_ports(ordinary_user: Account) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        tries = {
            "connect": f"socket.create_connection(('127.0.0.1', {port}), 5)",
            "bind": "socket.socket().bind(('127.0.0.1', 0))",
        }
        closed = confined(ordinary_user, rules(tcp_bind=[], tcp_connect=[]))
        assert tried(closed, tries) == {"connect": "EACCES", "bind": "EACCES"}
        some = confined(ordinary_user, rules(tcp_bind=[], tcp_connect=[port]))
        assert tried(some, tries) == {"connect": "done", "bind": "EACCES"}
        bound = confined(ordinary_user, rules(tcp_bind=[0], tcp_connect=[]))
        assert tried(bound, tries) == {"connect": "EACCES", "bind": "done"}
        assert set(tried(confined(ordinary_user, rules()), tries).values()) == {"done"}


@pytest.mark.skipif(landlock.ABI_SCOPE > ABI, reason="needs ABI 6")
def test_signals_and_abstract_sockets_stay_inside(ordinary_user: Account) -> None:
    """A process restricts itself in a child; the parent and a server of its stay outside."""
    code = f"""{TRIES}
name = f"\\0carrel-test-{{os.getpid()}}"
server = socket.socket(socket.AF_UNIX); server.bind(name); server.listen()
outside = os.getpid()
reader, writer = os.pipe()
def tries():
    return [attempt(lambda: os.kill(outside, 0)),
            attempt(lambda: socket.socket(socket.AF_UNIX).connect(name))]
child = os.fork()
if child == 0:
    before = tries()
    landlock.restrict(json.loads(args[0]))
    own = socket.socket(socket.AF_UNIX); own.bind(name + "2"); own.listen()
    inside = [attempt(lambda: os.kill(os.getpid(), 0)),
              attempt(lambda: socket.socket(socket.AF_UNIX).connect(name + "2"))]
    os.write(writer, json.dumps([before, tries(), inside]).encode())
    os._exit(0)
os.waitpid(child, 0)
answer = json.loads(os.read(reader, 4096))
"""
    before, outside, inside = confined(ordinary_user, None).python(code, json.dumps(rules()))
    assert before == ["done", "done"]
    assert outside == ["EPERM", "EPERM"]
    assert inside == ["done", "done"]


def test_other_processes_cannot_be_looked_into(ordinary_user: Account) -> None:
    """Of one's own user and dumpable, so that without Landlock it is allowed."""
    code = f"""{TRIES}
import subprocess
outside = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
                           env={{"SECRET": "x"}})
outside.stdin.write(b"ready"); outside.stdout.read(5)
def look(pid):
    return {{name: attempt(lambda name=name: do(pid, name)) for name in
            ("environ", "mem", "maps", "root", "cwd", "fd", "exe", "auxv", "cmdline", "stat")}}
def do(pid, name):
    path = f"/proc/{{pid}}/{{name}}"
    if name in ("root", "cwd", "exe"):
        return os.readlink(path)
    if name == "fd":  # the numbers can be seen, not what they are
        return os.readlink(path + "/0")
    return open(path, "rb").read(0 if name == "mem" else 10)
answer = [look(outside.pid)]
landlock.restrict(json.loads(args[0]))
answer.append(look(outside.pid))
outside.stdin.close(); outside.wait()
"""
    user = confined(ordinary_user, None)
    plain, limited = user.python(code, json.dumps(rules()))
    assert set(plain.values()) == {"done"}
    seen = {name for name, result in limited.items() if result == "done"}
    assert seen <= {"cmdline", "stat"}, limited
    assert {"EACCES", "EPERM"} >= {limited[name] for name in limited.keys() - seen}


@pytest.mark.parametrize("version", range(1, ABI + 1))
def test_every_older_version_still_confines(
    folder: Path, ordinary_user: Account, version: int
) -> None:
    given = rules(write=[f"{folder}/in", f"{folder}/in2"], tcp_bind=[], tcp_connect=[])
    within = confined(ordinary_user, given, version)
    inside = tried(within, FILES, str(folder))
    if version < landlock.ABI_REFER:
        assert inside.pop("move between") == inside.pop("link between") == "EXDEV"
    assert set(inside.values()) == {"done"}
    outside = dict(OUTSIDE)
    truncate = {"truncate outside": outside.pop("truncate outside")}
    found = tried(within, outside, str(folder))
    assert set(found.values()) <= {"EACCES", "EXDEV", "EPERM"}, found
    expected = "EACCES" if version >= landlock.ABI_TRUNCATE else "done"
    assert tried(within, truncate, str(folder)) == {"truncate outside": expected}


def test_what_each_version_covers() -> None:
    assert landlock.uncovered(0) == ("There is no Landlock: nothing is confined.",)
    sizes = [len(landlock.uncovered(version)) for version in range(1, 12)]
    assert sizes == sorted(sizes, reverse=True)
    assert landlock.TCP_OPEN in landlock.uncovered(3)
    assert landlock.TCP_OPEN not in landlock.uncovered(4)
    assert any("stat" in gap for gap in landlock.uncovered(99))


def test_no_landlock_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    with pytest.raises(OSError, match="not available") as caught:
        landlock.restrict(rules())
    assert caught.value.errno == errno.ENOSYS
