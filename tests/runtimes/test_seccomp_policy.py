"""What the filter refuses, tried with real calls, and what still works under it."""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from carrel.domain.errors import SandboxUnavailable
from carrel.domain.runtimes import Network
from carrel.linux import libc
from carrel.linux.libc import NUMBERS
from carrel.linux.seccomp import ALLOW, AUDIT_ARCH, FilterPolicy, compile_filter, errno_action
from carrel.runtimes import policy as seccomp_rules
from carrel.runtimes.policy import DEFAULT, program, without_namespaces
from tests.linux.bpf import evaluate
from tests.linux.confined import Confinement
from tests.volumes import volume

TABLE = NUMBERS[platform.machine()]
CONFINED = Confinement(program=program(DEFAULT))

CALL = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    words = [ctypes.c_char_p(one.encode()) if isinstance(one, str) else ctypes.c_long(one)
             for one in arguments]
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *words)
    return ctypes.get_errno() if result == -1 else 0
answer = {name: call(*words) for name, words in json.loads(args[0]).items()}
"""


class Try(NamedTuple):
    arguments: tuple[int | str, ...] = ()
    safe: bool = True
    """Whether the same call does no harm without the filter, as root."""


BAD = -1
# Arguments that the kernel itself finds wrong, so that without the filter its answer is
# another: only then does EPERM come from the filter.
REFUSED: dict[str, Try] = {
    "mount": Try(("none", "/nonexistent", "tmpfs", 0, 0)),
    "umount2": Try(("/nonexistent", 0)),
    "pivot_root": Try(("/nonexistent", "/nonexistent")),
    "chroot": Try(("/nonexistent",)),
    "move_mount": Try((BAD, "", BAD, "", 0)),
    "open_tree": Try((BAD, "", BAD)),
    "open_tree_attr": Try((BAD, "", BAD, 0, 0)),
    "fsopen": Try(("nosuchfs", 0)),
    "fsconfig": Try((BAD, 6, 0, 0, 0)),
    "fsmount": Try((BAD, 0, 0)),
    "fspick": Try((BAD, "", BAD)),
    "mount_setattr": Try((BAD, "", BAD, 0, 0)),
    "open_by_handle_at": Try((BAD, 0, 0)),
    "kexec_load": Try((0, 99, 0, BAD)),
    "kexec_file_load": Try((BAD, BAD, 0, 0, BAD)),
    "init_module": Try((0, 0, 0)),
    "finit_module": Try((BAD, "", 0)),
    "delete_module": Try(("nosuchmodule", 0)),
    "create_module": Try(),
    "get_kernel_syms": Try(),
    "query_module": Try(),
    "bpf": Try((BAD, 0, 0)),
    "perf_event_open": Try((0, BAD, BAD, BAD, 0)),
    "userfaultfd": Try((0x7FFF0000,)),
    "fanotify_init": Try((0x7FFF0000, 0)),
    "keyctl": Try((9999,)),
    "add_key": Try(("", "", 0, 0, 0)),
    "request_key": Try(("nosuchtype", "x", 0, 0)),
    "syslog": Try((99, 0, 0)),
    "setns": Try((BAD, 0)),
    "reboot": Try((0, 0, 0, 0)),
    "swapon": Try(("/nonexistent", 0)),
    "swapoff": Try(("/nonexistent",)),
    "settimeofday": Try((1, 0)),
    "clock_settime": Try((9999, 0)),
    "adjtimex": Try((0,)),
    "clock_adjtime": Try((9999, 0)),
    "acct": Try(("/nonexistent",)),
    "quotactl": Try((BAD, 0, 0, 0)),
    "quotactl_fd": Try((BAD, 0, 0, 0)),
    "iopl": Try((99,)),
    "ioperm": Try((BAD, BAD, 1)),
    "vhangup": Try(safe=False),
    "sethostname": Try((0, BAD)),
    "setdomainname": Try((0, BAD)),
    "lookup_dcookie": Try(),
    "nfsservctl": Try(),
    "uselib": Try(("/nonexistent",)),
    "modify_ldt": Try((99, 0, 0)),
    "sysfs": Try((99,)),
    "ustat": Try((BAD, 0)),
    "file_setattr": Try((BAD, "", 0, 0, BAD)),
    "pidfd_getfd": Try((BAD, BAD, BAD)),
}
ABSENT: dict[str, Try] = {
    "clone3": Try((0, 0)),
    "openat2": Try((BAD, "", 0, 0)),
    "io_uring_setup": Try((BAD, 0)),
    "io_uring_enter": Try((BAD, 0, 0, 0, 0, 0)),
    "io_uring_register": Try((BAD, 0, 0, 0)),
}
CLONE = {
    "time": 0x80,
    "mount": 0x00020000,
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}


def answers(confinement: Confinement, calls: Mapping[str, tuple[object, ...]]) -> dict[str, int]:
    found: dict[str, int] = confinement.python(CALL, json.dumps(calls))
    return found


def test_every_refused_call_has_a_try() -> None:
    named = {rule.syscall for rule in DEFAULT.rules if not rule.when}
    assert named == REFUSED.keys() | ABSENT.keys()


def test_refused_calls_fail_with_the_right_errno() -> None:
    tries = {**REFUSED, **ABSENT}
    calls = {name: (TABLE[name], *one.arguments) for name, one in tries.items() if name in TABLE}
    found = answers(CONFINED, calls)
    assert found == {name: errno.ENOSYS if name in ABSENT else errno.EPERM for name in calls}
    safe = {name: call for name, call in calls.items() if tries[name].safe}
    plain = answers(Confinement(), safe)
    # The kernel refuses a few as it was built, and a few by the user who asks.
    same = {name for name in safe if plain[name] == found[name]}
    assert len(same) < len(safe) / 2, same
    assert {"mount", "clone3", "setns", "bpf", "reboot", "keyctl"}.isdisjoint(same)


def test_namespaces_cannot_be_made() -> None:
    calls = {f"unshare {name}": (TABLE["unshare"], flag) for name, flag in CLONE.items()} | {
        # With a bad combination of flags, so that nothing is cloned when it is let through.
        f"clone {name}": (TABLE["clone"], flag | 0x00010000, 0, 0, 0, 0)
        for name, flag in CLONE.items()
        if name != "time"
    }
    assert set(answers(CONFINED, calls).values()) == {errno.EPERM}
    control = answers(Confinement(), {"clone": calls["clone pid"]})
    assert control == {"clone": errno.EINVAL}
    # What is no namespace may be unshared: files and the file system's state.
    assert answers(CONFINED, {"files": (TABLE["unshare"], 0x600)}) == {"files": 0}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk")
def test_no_subvolumes_that_nobody_could_empty() -> None:
    """Of btrfs, where anybody may make and lock them."""
    code = """
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
def ioctl(command, folder, content):
    descriptor = os.open(folder, os.O_RDONLY)
    given = ctypes.create_string_buffer(content, len(content))
    failed = libc.ioctl(descriptor, ctypes.c_ulong(command), given) == -1
    answer[hex(command)] = ctypes.get_errno() if failed else 0
top, answer = args[0], {}
source = os.open(top, os.O_RDONLY)
for command in (0x5000940E, 0x50009401):
    ioctl(command, top, struct.pack("q4088s", source, b"%x" % command))
for command in (0x50009417, 0x50009418):
    ioctl(command, top, struct.pack("q6Q4040s", source, 0, 0, 0, 0, 0, 0, b"%x" % command))
ioctl(0x4008941A, top, bytes(8))
"""
    with volume("btrfs") as folder:
        found = CONFINED.python(code, str(folder))
        assert set(found.values()) == {errno.EPERM}, found
        assert os.listdir(folder) == []
        plain = Confinement().python(code, str(folder))
        assert set(plain.values()) == {0}, plain


def test_nobody_is_made_to_wait_for_a_file(tmp_path: Path) -> None:
    """A lease on one that other sandboxes open too."""
    code = """
import fcntl
answer = {}
file = os.open(args[0], os.O_RDONLY)
for name, command, argument in (("lease", fcntl.F_SETLEASE, fcntl.F_WRLCK),
                                ("delegation", 1040, 0),
                                ("flags", fcntl.F_GETFL, 0)):
    try:
        fcntl.fcntl(file, command, argument)
        answer[name] = 0
    except OSError as error:
        answer[name] = error.errno
"""
    (tmp_path / "file").touch()
    found = CONFINED.python(code, str(tmp_path / "file"))
    assert found == {"lease": errno.EPERM, "delegation": errno.EPERM, "flags": 0}
    assert Confinement().python(code, str(tmp_path / "file"))["lease"] == 0


def test_nobody_is_made_to_wait_for_the_reader_of_a_connection() -> None:
    """By closing it, which may be somebody's who was sent it. The call tells of no error, as few
    look for one."""
    code = """
import socket, struct
one = socket.socket()
told = struct.pack("ii", 1, 1000)
one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, told)
one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
answer = {"linger": one.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == told,
          "other": bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR))}
"""
    assert CONFINED.python(code) == {"linger": False, "other": True}
    assert Confinement().python(code) == {"linger": True, "other": True}


def test_the_disk_cannot_be_taken_at_once(data: Path) -> None:
    """A limit that is looked at once a second would come too late. What makes room goes on, and so
    does the C library's way around."""
    code = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
file = os.open(args[0], os.O_RDWR | os.O_CREAT)
os.write(file, bytes(65536))
answer = {}
for mode in (0, 1, 3, 0x10, 0x40):
    failed = libc.fallocate(file, mode, ctypes.c_long(0), ctypes.c_long(8192)) == -1
    answer[str(mode)] = ctypes.get_errno() if failed else 0
buffer = ctypes.create_string_buffer(64)
for command in (0x40305828, 0x4030582A, 0x40305839):
    failed = libc.ioctl(file, ctypes.c_ulong(command), buffer) == -1
    answer[hex(command)] = ctypes.get_errno() if failed else 0
os.posix_fallocate(file, 0, 1 << 20)
answer["size"] = os.fstat(file).st_size
"""
    found = CONFINED.python(code, str(data / "file"))
    assert (found.pop("size"), found.pop("3")) == (1 << 20, 0)
    assert set(found.values()) == {errno.EOPNOTSUPP}, found
    plain = Confinement().python(code, str(data / "other"))
    assert plain["0"] == plain["1"] == 0


def test_terminals_cannot_be_typed_into_nor_quotas_be_left(tmp_path: Path) -> None:
    code = """
import fcntl, pty
master, slave = pty.openpty()
file = os.open(args[0], os.O_RDWR | os.O_CREAT)
answer = {}
for name, fd, command in (("TIOCSTI", slave, 0x5412), ("TIOCLINUX", slave, 0x541C),
                          ("TIOCSETD", slave, 0x5423), ("high bits", slave, 0x100005412),
                          ("FSSETXATTR", file, 0x401C5820), ("SETFLAGS", file, 0x40086602),
                          ("TCGETS", slave, 0x5401)):
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(256)
    failed = libc.ioctl(fd, ctypes.c_ulong(command), buffer) == -1
    answer[name] = ctypes.get_errno() if failed else 0
"""
    found = CONFINED.python(code, str(tmp_path / "file"))
    assert found.pop("TCGETS") == 0
    assert set(found.values()) == {errno.EPERM}, found
    plain = Confinement().python(code, str(tmp_path / "file"))
    assert plain["TIOCSETD"] == 0
    assert plain["SETFLAGS"] != errno.EPERM


def test_personalities() -> None:
    number = TABLE["personality"]
    allowed = {"ask": (number, 0xFFFFFFFF), "plain": (number, 0), "no aslr": (number, 0x40000)}
    assert set(answers(CONFINED, allowed).values()) == {0}
    refused = {"exec": (number, 0x400000), "zero page": (number, 0x100000), "svr4": (number, 1)}
    assert set(answers(CONFINED, refused).values()) == {errno.EPERM}


SOCKETS = """
import socket
answer = {}
for name, family, kind, protocol in json.loads(args[0]):
    try:
        socket.socket(family, kind, protocol).close()
        answer[name] = 0
    except OSError as error:
        answer[name] = error.errno
try:
    [one.close() for one in socket.socketpair()]
    answer["pair"] = 0
except OSError as error:
    answer["pair"] = error.errno
try:
    [one.close() for one in socket.socketpair(type=socket.SOCK_DGRAM)]
    answer["datagram pair"] = 0
except OSError as error:
    answer["datagram pair"] = error.errno
"""
STREAM, DGRAM, RAW, SEQPACKET = 1, 2, 3, 5
KINDS = [
    ("unix", socket.AF_UNIX, STREAM, 0),
    ("unix datagram", socket.AF_UNIX, DGRAM, 0),
    ("tcp", socket.AF_INET, STREAM | socket.SOCK_CLOEXEC, 0),
    ("udp", socket.AF_INET, DGRAM, 17),
    ("tcp 6", socket.AF_INET6, STREAM, 6),
    ("udp 6", socket.AF_INET6, DGRAM, 0),
    ("route", socket.AF_NETLINK, RAW, 0),
    ("netfilter", socket.AF_NETLINK, RAW, 12),
    ("audit", socket.AF_NETLINK, RAW, 9),
    ("sctp", socket.AF_INET, SEQPACKET, 132),
    ("sctp stream", socket.AF_INET, STREAM, 132),
    ("dccp", socket.AF_INET, 6, 33),
    ("smc", socket.AF_INET, STREAM, 256),
    ("packet", socket.AF_PACKET, RAW, 3),
    ("vsock", 40, STREAM, 0),
    ("alg", 38, SEQPACKET, 0),
    ("tipc", 30, SEQPACKET, 0),
    ("bluetooth", 31, RAW, 0),
    ("can", 29, RAW, 1),
    ("rds", 21, SEQPACKET, 0),
    ("xdp", 44, RAW, 0),
]
NO_FAMILY = {"packet", "vsock", "alg", "tipc", "bluetooth", "can", "rds", "xdp"}


def sockets(policy: FilterPolicy) -> dict[str, int]:
    found: dict[str, int] = Confinement(program=program(policy)).python(SOCKETS, json.dumps(KINDS))
    return found


def test_socket_families() -> None:
    found = sockets(DEFAULT)
    assert {name: found[name] for name in NO_FAMILY} == dict.fromkeys(NO_FAMILY, errno.EAFNOSUPPORT)
    assert {found[name] for name in ("netfilter", "audit", "sctp stream", "smc")} == {
        errno.EPROTONOSUPPORT
    }
    assert {found[name] for name in ("sctp", "dccp")} == {errno.ESOCKTNOSUPPORT}
    ordinary = ("unix", "unix datagram", "tcp", "udp", "tcp 6", "udp 6", "route", "pair")
    plain = Confinement().python(SOCKETS, json.dumps(KINDS))
    assert {name: found[name] for name in ordinary} == {name: plain[name] for name in ordinary}
    assert plain["packet"] != errno.EAFNOSUPPORT  # root may, so the filter did it


def test_without_namespaces_and_network_no_internet_socket() -> None:
    found = sockets(without_namespaces(Network.NONE, unix_sockets=True))
    internet = {"tcp", "udp", "tcp 6", "udp 6", "sctp", "sctp stream", "dccp", "smc"}
    assert {found[name] for name in internet} == {errno.EACCES}
    assert found["unix"] == found["route"] == found["pair"] == found["datagram pair"] == 0
    assert found["packet"] == errno.EAFNOSUPPORT


def test_without_namespaces_but_with_network() -> None:
    found = sockets(without_namespaces(Network.OPEN, unix_sockets=False))
    assert found["tcp"] == found["udp"] == found["pair"] == 0
    assert found["unix"] == found["unix datagram"] == found["datagram pair"] == errno.EACCES


def test_without_namespaces_no_ipc_of_the_whole_machine() -> None:
    calls = {name: (TABLE[name], 0, 0, 0, 0) for name in seccomp_rules._SYSTEM_V}
    policy = without_namespaces(Network.OPEN, unix_sockets=True)
    found = answers(Confinement(program=program(policy)), calls)
    assert set(found.values()) == {errno.ENOSYS}
    assert errno.ENOSYS not in answers(Confinement(), {"semop": calls["semop"]}).values()


@pytest.mark.parametrize("machine", sorted(NUMBERS))
def test_both_machines_refuse_the_same(machine: str) -> None:
    code = compile_filter(DEFAULT, machine)
    for name in REFUSED.keys() & NUMBERS[machine].keys():
        found = evaluate(code, AUDIT_ARCH[machine], NUMBERS[machine][name], [])
        assert found == errno_action(errno.EPERM), name


O_CREAT, O_TMPFILE = 0o100, 0o20200000
SET_IDS: dict[str, tuple[tuple[int, ...], int]] = {
    "chmod": ((0,), 0),
    "fchmod": ((0,), 0),
    "fchmodat": ((BAD, 0), 0),
    "fchmodat2": ((BAD, 0), 0),
    "creat": ((0,), 0),
    "mknod": ((0,), 0o100000),
    "mknodat": ((BAD, 0), 0o100000),
    "open": ((0, O_CREAT), 0),
    "openat": ((BAD, 0, O_TMPFILE), 0),
}
"""The arguments before the mode, and what else is in it."""


@pytest.mark.parametrize("machine", sorted(NUMBERS))
@pytest.mark.parametrize(
    "policy",
    [DEFAULT, *(without_namespaces(one, unix_sockets=False) for one in Network)],
    ids=["namespaces", "landlock", "landlock-open"],
)
def test_no_policy_lets_a_set_id_bit_pass(policy: FilterPolicy, machine: str) -> None:
    code = compile_filter(policy, machine)

    def answer(name: str, *arguments: int) -> int:
        words = [word & (1 << 64) - 1 for word in arguments]
        return evaluate(code, AUDIT_ARCH[machine], NUMBERS[machine][name], words)

    for name, (before, kind) in SET_IDS.items():
        if name not in NUMBERS[machine]:
            continue
        for bits in (0o4000, 0o2000, 0o6000, 0o4000 | 1 << 40):
            refused = answer(name, *before, kind | bits | 0o755)
            assert refused == errno_action(errno.EPERM), (name, oct(bits))
        # The sticky bit is for folders that many share, and harmless.
        assert answer(name, *before, kind | 0o1777) == ALLOW, name
    # Without O_CREAT the third argument is whatever the register held.
    assert answer("openat", BAD, 0, 0, 0o6755) == ALLOW


def test_a_machine_without_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libc, "MACHINE", "vax")
    with pytest.raises(SandboxUnavailable, match="vax"):
        program(DEFAULT)


# What must go on working

PYTHON = """
import asyncio, concurrent.futures, multiprocessing, subprocess, threading, sqlite3, tempfile
threads = [threading.Thread(target=lambda: None) for _ in range(8)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
async def main():
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    await reader.read(); writer.close(); server.close()
    child = await asyncio.create_subprocess_exec("echo", "hi", stdout=asyncio.subprocess.PIPE)
    return (await child.communicate())[0].decode()
context = multiprocessing.get_context("spawn")
with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
    numbers = list(pool.map(abs, [-1, -2]))
with tempfile.NamedTemporaryFile() as file, sqlite3.connect(file.name) as database:
    database.execute("pragma journal_mode=wal")
    database.execute("create table t (x)"); database.execute("insert into t values (7)")
    row = database.execute("select x from t").fetchone()[0]
answer = [asyncio.run(main()).strip(), numbers, row,
          subprocess.run("true | cat", shell=True).returncode]
"""


def test_python_works() -> None:
    assert CONFINED.python(PYTHON) == ["hi", [1, 2], 7, 0]


SCRIPTS = {
    "git": """
        git init -q . && echo a > a && git add a && git commit -qm one
        git checkout -qb other && echo b >> a && git commit -qam two && git gc -q
        git clone -q --no-local . ../clone && git -C ../clone log --oneline | grep -c .
    """,
    "gcc": """
        printf '#include <stdio.h>\\nint main(void) { puts("ran"); return 0; }' > a.c
        gcc -O1 -o a a.c && ./a
    """,
    "tar": "mkdir d && echo x > d/f && tar czf d.tgz d && rm -r d && tar xzf d.tgz && cat d/f",
    "sqlite3": "sqlite3 db 'pragma journal_mode=wal; create table t(x); select count(*) from t;'",
    "node": """
        node -e 'const { Worker } = require("worker_threads"); const cp = require("child_process");
        const fs = require("fs"); fs.writeFileSync("f", "1");
        new Worker("require(`worker_threads`).parentPort.postMessage(1)", { eval: true })
          .on("message", () => fs.promises.readFile("f").then(
             () => console.log(cp.execSync("echo child").toString())));'
    """,
    "tmux": """
        tmux -S s -f /dev/null new-session -d 'tty > out; tmux -S s wait-for -S ready; cat'
        tmux -S s wait-for ready && cat out && tmux -S s kill-server
    """,
    "strace": "strace -f -o log true && grep -c execve log",
    "perl": "perl -e 'my $p = fork() // die; exit 0 unless $p; waitpid $p, 0; print $?'",
}


@pytest.mark.parametrize("tool", sorted(SCRIPTS))
def test_ordinary_programs_work(tool: str, tmp_path: Path) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    folder = tmp_path / "work"
    folder.mkdir()
    try:
        result = CONFINED.run(["sh", "-ec", SCRIPTS[tool]], cwd=folder)
        assert result.returncode == 0, result.stderr
        assert result.stdout.strip()
    finally:
        if tool == "tmux":
            subprocess.run(
                ["tmux", "-S", str(folder / "s"), "kill-server"],
                capture_output=True,
                timeout=20,
                check=False,
            )
