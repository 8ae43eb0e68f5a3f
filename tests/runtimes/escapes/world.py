"""What lies outside the sandbox: real things, all of which its own host user could have.

That is the point: where the attempts are refused, it is the sandbox that refuses, not the
modes of files. Everything is gone when the context ends, and `assert_untouched` says whether
an attempt changed any of it.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carrel.domain.trees import Owner
from tests.folders import remove_folder
from tests.runtimes.escapes import victim
from tests.runtimes.escapes.inside import Targets, syscall

PYTHON = "/usr/bin/python3"
VICTIM_END_S = 10.0
"""It ends at once when it is killed."""
CANARY = "the canary of another space"
_IPC_CREAT, _IPC_EXCL, _IPC_RMID = 0o1000, 0o2000, 0
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.shmat.restype = ctypes.c_void_p
_LIBC.shmdt.argtypes = [ctypes.c_void_p]


@dataclass(frozen=True)
class World:
    targets: Targets
    """As the sandbox has it."""
    bare: Targets
    """As whoever is not in a sandbox has it: the same, but for where to work."""
    owner: Owner
    canary: int
    """A descriptor, to be inherited where there is no sandbox."""

    def assert_untouched(self) -> None:
        targets = self.targets
        assert Path(targets.canary).read_text() == CANARY
        assert sorted(os.listdir(targets.outside_folder)) == ["exchange", "socket"]
        assert Path(targets.exchange).read_text() == "theirs"
        assert Path(targets.planted_tmp).read_text() == targets.marker
        status = Path(f"/proc/{targets.victim}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.splitlines())
        assert fields["State"].startswith("S"), fields["State"]
        assert fields["TracerPid"].strip() == "0"
        pending = int(fields["ShdPnd"], 16) | int(fields["SigPnd"], 16)
        assert not pending & 1 << (signal.SIGURG - 1), "a signal came out of the sandbox"
        assert os.uname().nodename != "carrel-escape"


@contextmanager
def open_world(data: Path, owner: Owner, marker: str) -> Iterator[World]:
    """`data` is the data folder of the sandbox's runtime, `marker` a word that nothing in the
    sandbox may come across."""
    with ExitStack() as stack:
        top = Path(tempfile.mkdtemp(prefix="carrel-world-"))
        stack.callback(remove_folder, top)
        top.chmod(0o755)
        files = _files(stack, data, top, owner, marker)
        canary = os.open(files["canary"], os.O_RDONLY)
        stack.callback(os.close, canary)
        targets = Targets(
            **files,
            **_process(stack, owner, marker, canary),
            **_sockets(stack, top),
            **_ipc(stack, marker),
            canary_text=CANARY,
            canary_handle=_handle(files["canary"]),
            data=str(data),
            marker=marker,
            terminal=_terminal(stack, owner),
            work="/workspace",
            read_only="/usr",
        )
        work = _folder(top / "work", owner)
        where = {"work": str(work), "read_only": str(work / "read-only")}
        bare = Targets(**{**targets.__dict__, **where})
        yield World(targets, bare, owner, canary)


def _folder(path: Path, owner: Owner, mode: int = 0o755) -> Path:
    path.mkdir(parents=True)
    path.chmod(mode)
    _give(path, owner)
    return path


def _file(path: Path, owner: Owner, text: str) -> str:
    path.write_text(text)
    path.chmod(0o666)
    _give(path, owner)
    return str(path)


def _give(path: Path, owner: Owner) -> None:
    if os.geteuid() == 0:
        os.chown(path, owner.uid, owner.gid)


def _files(stack: ExitStack, data: Path, top: Path, owner: Owner, marker: str) -> dict[str, Any]:
    tree = _folder(data / f"canary-{marker}" / "project", owner)
    tree.parent.chmod(0o755)
    outside = _folder(top / "outside", owner, 0o777)
    planted = {}
    for name, folder in (("planted_tmp", "/tmp"), ("planted_shm", "/dev/shm")):
        path = Path(folder) / f"carrel-planted-{marker}"
        stack.callback(path.unlink, missing_ok=True)
        planted[name] = _file(path, owner, marker)
    return {
        "canary": _file(tree / "canary", owner, CANARY),
        "outside_folder": str(outside),
        "exchange": _file(outside / "exchange", owner, "theirs"),
        **planted,
    }


def _process(stack: ExitStack, owner: Owner, marker: str, canary: int) -> dict[str, Any]:
    identity = (owner.uid, owner.gid, ()) if os.geteuid() == 0 else (None, None, None)
    source = Path(victim.__file__).read_text()
    process = subprocess.Popen(
        [PYTHON, "-I", "-c", source, marker],
        env={"CARREL_MARKER": marker},
        stdin=canary,
        stdout=subprocess.PIPE,
        start_new_session=True,
        user=identity[0],
        group=identity[1],
        extra_groups=identity[2],
    )
    stack.callback(process.wait, VICTIM_END_S)
    stack.callback(process.kill)
    assert process.stdout is not None
    stack.callback(process.stdout.close)
    found = json.loads(process.stdout.readline())
    return {"victim": process.pid, "key": found["key"], "victim_address": found["address"]}


def _handle(path: str) -> str:
    """What name_to_handle_at says; made up where the file system has no handles."""
    handle = (ctypes.c_uint32 * 34)(128)
    mount = ctypes.c_int()
    try:
        where = (ctypes.byref(handle), ctypes.byref(mount), 0)
        syscall("name_to_handle_at", -100, path.encode(), *where)
    except OSError:
        handle = (ctypes.c_uint32 * 34)(8, 1, 2)
    return bytes(handle)[: 8 + handle[0]].hex()


@dataclass(frozen=True)
class _Listeners:
    stack: ExitStack

    def listen(self, family: int, kind: int, address: str | tuple[str, int]) -> socket.socket:
        one = self.stack.enter_context(socket.socket(family, kind))
        one.bind(address)
        if kind == socket.SOCK_STREAM:
            one.listen()
        return one


def _sockets(stack: ExitStack, top: Path) -> dict[str, Any]:
    listeners = _Listeners(stack)
    local = ("127.0.0.1", 0)
    tcp = listeners.listen(socket.AF_INET, socket.SOCK_STREAM, local)
    udp = listeners.listen(socket.AF_INET, socket.SOCK_DGRAM, local)
    abstract = f"carrel-escapes-{secrets.token_hex(8)}"
    listeners.listen(socket.AF_UNIX, socket.SOCK_STREAM, f"\0{abstract}")
    listeners.listen(socket.AF_UNIX, socket.SOCK_DGRAM, f"\0{abstract}-datagram")
    path = str(top / "outside" / "socket")
    listeners.listen(socket.AF_UNIX, socket.SOCK_STREAM, path)
    os.chmod(path, 0o666)
    return {
        "tcp_port": tcp.getsockname()[1],
        "udp_port": udp.getsockname()[1],
        "abstract": abstract,
        "unix_socket": path,
    }


def _terminal(stack: ExitStack, owner: Owner) -> str:
    for descriptor in (pair := os.openpty()):
        stack.callback(os.close, descriptor)
    if os.geteuid() == 0:
        os.fchown(pair[1], owner.uid, owner.gid)
    return os.ttyname(pair[1])


def _ipc(stack: ExitStack, marker: str) -> dict[str, Any]:
    flags = _IPC_CREAT | _IPC_EXCL | 0o666
    key = secrets.randbelow(1 << 30) + 1
    memory = _check(_LIBC.shmget(key, 4096, flags))
    stack.callback(_LIBC.shmctl, memory, _IPC_RMID, None)
    address = _LIBC.shmat(memory, None, 0)
    ctypes.memmove(address, marker.encode(), len(marker))
    _LIBC.shmdt(address)
    stack.callback(_LIBC.msgctl, _check(_LIBC.msgget(key, flags)), _IPC_RMID, None)
    stack.callback(_LIBC.semctl, _check(_LIBC.semget(key, 1, flags)), 0, _IPC_RMID)
    queue = f"/carrel-{marker}"
    before = os.umask(0)
    try:
        opened = _check(_LIBC.mq_open(queue.encode(), os.O_RDWR | os.O_CREAT, 0o666, None))
    finally:
        os.umask(before)
    stack.callback(_LIBC.mq_unlink, queue.encode())
    os.close(opened)
    return {"shm_key": key, "msg_key": key, "sem_key": key, "queue": queue}


def _check(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
