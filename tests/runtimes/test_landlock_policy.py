"""The rules and the filter of a sandbox without namespaces, from inside it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from carrel.domain.runtimes import Bind, Network
from carrel.linux import landlock
from carrel.runtimes.policy import (
    LandlockSpec,
    etc_paths,
    program,
    remove_shared_memory,
    rules,
    uncovered,
    unix_sockets_allowed,
    without_namespaces,
)
from tests.accounts import Account, interpreter_for
from tests.linux.confined import Confinement

ABI = landlock.abi()
pytestmark = pytest.mark.skipif(ABI < landlock.ABI_SCOPE, reason="needs Landlock's ABI 6")

# Where the tests' own interpreter lives is no part of the sandbox's rules.
INTERPRETER = tuple(
    Bind(Path(prefix), prefix) for prefix in (sys.base_prefix, sys.prefix) if prefix != "/usr"
)

TRIES = """
import errno, resource, socket, subprocess
def attempt(do):
    try:
        do()
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]
    except subprocess.CalledProcessError as error:
        return f"exit {error.returncode}"
answer = {name: attempt(lambda: eval(do)) for name, do in json.loads(args[0]).items()}
"""


class Room:
    """Two spaces of the same user side by side, and a server of each kind outside."""

    def __init__(self, folder: Path, user: Account) -> None:
        self.user = user
        self.space, self.other = folder / "a", folder / "b"
        for space in (self.space, self.other):
            for name in ("project", "home", "tmp"):
                (space / name).mkdir(parents=True)
                (space / name / "file").write_text(name)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, user.uid, user.gid)

    def spec(self, network: Network = Network.NONE, own_user: bool = True) -> LandlockSpec:
        space = self.space
        return LandlockSpec(
            space / "project", space / "home", space / "tmp", network, INTERPRETER, own_user
        )

    def confined(self, spec: LandlockSpec | None) -> Confinement:
        as_root = os.geteuid() == 0
        return Confinement(
            program=None
            if spec is None
            else program(
                without_namespaces(
                    spec.network,
                    unix_sockets=unix_sockets_allowed(spec, ABI),
                    own_user=spec.own_user,
                )
            ),
            rules=None if spec is None else rules(spec),
            uid=self.user.uid if as_root else None,
            gid=self.user.gid if as_root else None,
            interpreter=interpreter_for(self.user).executable,
        )

    def tried(self, spec: LandlockSpec | None, tries: dict[str, str]) -> dict[str, str]:
        found: dict[str, str] = self.confined(spec).python(
            TRIES, json.dumps(tries), cwd=self.space / "project"
        )
        return found


@pytest.fixture
def room(data: Path, ordinary_user: Account) -> Room:
    return Room(data / "spaces", ordinary_user)


def test_other_files_cannot_be_reached(room: Room) -> None:
    other = room.other
    tries = {
        "read another tree": f"open('{other}/project/file').read()",
        "list another tree": "os.listdir('../../b/project')",
        "write another home": f"open('{other}/home/file', 'a')",
        "move out": f"os.rename('file', '{other}/project/moved')",
        "link out": f"os.link('file', '{other}/project/linked')",
        "link in": f"os.link('{other}/project/file', 'linked')",
        "the data folder": f"os.listdir('{other.parent}')",
        "etc": "os.listdir('/etc')",
        "var": "os.listdir('/var')",
        "home": "os.listdir('/home')",
        "root": "os.listdir('/')",
        "the host's tmp": "os.listdir('/tmp')",
        "make in tmp": "os.close(__import__('tempfile').mkstemp(dir='/tmp')[0])",
        "sys": "os.listdir('/sys/kernel')",
        "run": "os.listdir('/run')",
        "a device": "os.open('/dev/fuse' if os.path.exists('/dev/fuse') else '/dev', os.O_RDONLY)",
    }
    found = room.tried(room.spec(), tries)
    assert set(found.values()) <= {"EACCES", "EXDEV", "EPERM"}, found
    harmless = {name: do for name, do in tries.items() if name not in ("move out", "make in tmp")}
    plain = room.tried(None, harmless)
    done = {name for name, result in plain.items() if result == "done"}
    assert {"read another tree", "write another home", "link in", "etc", "var", "run"} <= done


def test_secrets_are_refused_even_to_root(room: Room) -> None:
    if os.geteuid() != 0:
        pytest.skip("shows what the rules refuse when file modes do not")
    confinement = Confinement(rules=rules(room.spec()), interpreter="/usr/bin/python3")
    paths = ["/etc/shadow", "/etc/gshadow", "/root/.", "/etc/ssl/private/.", "/etc/sudoers"]
    tries = {path: f"os.open('{path}', os.O_RDONLY)" for path in paths if Path(path).exists()}
    found = confinement.python(TRIES, json.dumps(tries))
    assert found
    assert set(found.values()) == {"EACCES"}
    plain = Confinement(interpreter="/usr/bin/python3").python(TRIES, json.dumps(tries))
    assert set(plain.values()) == {"done"}


def test_what_a_sandbox_needs_works(room: Room) -> None:
    tries = {
        "tree": "open('new', 'w').write('x')",
        "folder": "os.makedirs('x/y')",
        "move within": "os.rename('new', 'x/y/new')",
        "home": f"open('{room.space}/home/new', 'w')",
        "tmp": f"os.rename('x/y/new', '{room.space}/tmp/new')",
        "programs": "subprocess.run(['sh', '-c', 'ls | cat'], check=True, capture_output=True)",
        "passwd": "open('/etc/passwd').read()",
        "proc": "open('/proc/self/status').read()",
        "cpus": "os.listdir('/sys/devices/system/cpu')",
        "null": "open('/dev/null', 'r+b', buffering=0).write(b'x')",
        "random": "open('/dev/urandom', 'rb').read(1)",
        "pair": "socket.socketpair()",
        "interfaces": "socket.if_nameindex()",
    }
    for own_user in (True, False):
        found = room.tried(room.spec(own_user=own_user), tries)
        assert found == dict.fromkeys(tries, "done")
        shutil.rmtree(room.space / "project/x")


def test_a_user_of_its_own_has_terminals_and_shared_memory_where_that_is_its_own(
    room: Room,
) -> None:
    name = f"carrel-test-{os.getpid()}"
    tries = {
        "pty": "__import__('pty').openpty()",
        "shm": f"open('/dev/shm/{name}', 'w').write('x')",
        "locks": "__import__('multiprocessing').Lock()",
    }
    try:
        own = replace(room.spec(own_user=True), shared_memory=True)
        assert room.tried(own, tries) == dict.fromkeys(tries, "done")
        del tries["pty"]
        for own_user in (True, False):
            shared = room.tried(room.spec(own_user=own_user), tries)
            assert set(shared.values()) == {"EACCES"}
    finally:
        Path(f"/dev/shm/{name}").unlink(missing_ok=True)


def test_removing_shared_memory_leaves_that_of_others(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_text("x")
    (tmp_path / "link").symlink_to("/etc/passwd")
    assert remove_shared_memory(os.geteuid() + 1, tmp_path) == 0
    assert remove_shared_memory(os.geteuid(), tmp_path) == 3
    assert list(tmp_path.iterdir()) == []
    assert remove_shared_memory(0, tmp_path / "nowhere") == 0


def test_shared_memory_can_be_removed_however_deep_it_is(tmp_path: Path) -> None:
    """Else its sandbox could never be stopped."""
    above = os.open(tmp_path, os.O_RDONLY)
    try:
        for _ in range(sys.getrecursionlimit()):
            os.mkdir("d", dir_fd=above)
            below = os.open("d", os.O_RDONLY, dir_fd=above)
            os.close(above)
            above = below
    finally:
        os.close(above)
    assert remove_shared_memory(os.geteuid(), tmp_path) == 1
    assert not os.listdir(tmp_path)


@pytest.fixture
def servers(data: Path) -> Iterator[dict[str, str]]:
    """What is listened on outside, as expressions that connect to it."""
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as path,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        udp.bind(("127.0.0.1", 0))
        name = str(data / "outside.sock")
        path.bind(name)
        path.listen()
        os.chmod(name, 0o777)
        hidden = f"\\0carrel-test-{os.getpid()}"
        abstract.bind(hidden.replace("\\0", "\0"))
        abstract.listen()
        address = tcp.getsockname()
        yield {
            "tcp": f"socket.create_connection({address}, 5)",
            "fast open": f"socket.socket().sendto(b'x', 0x20000000, {address})",
            "multipath": "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)"
            f".connect({address})",
            "listen": "socket.socket().listen()",
            "udp": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)"
            f".sendto(b'x', {udp.getsockname()})",
            "path": f"socket.socket(socket.AF_UNIX).connect('{name}')",
            "path datagram": f"socket.socketpair(type=socket.SOCK_DGRAM)[0].sendto(b'x', '{name}')",
            "abstract": f"socket.socket(socket.AF_UNIX).connect('{hidden}')",
        }


def test_network_none_reaches_nothing(room: Room, servers: dict[str, str]) -> None:
    found = room.tried(room.spec(Network.NONE, own_user=False), servers)
    assert set(found.values()) <= {"EACCES", "EPERM"}, found
    plain = room.tried(None, servers)
    assert {name for name, result in plain.items() if result == "done"} >= {
        "tcp",
        "udp",
        "path",
        "abstract",
        "listen",
    }


def test_network_open(room: Room, servers: dict[str, str]) -> None:
    found = room.tried(room.spec(Network.OPEN, own_user=False), servers)
    refused = {"path", "path datagram", "abstract"}
    assert {name for name, result in found.items() if result != "done"} - {"multipath"} == refused


def test_a_user_of_its_own_may_make_unix_sockets(room: Room, servers: dict[str, str]) -> None:
    tries = {
        "abstract": servers["abstract"],
        "own": "(s := socket.socket(socket.AF_UNIX), s.bind('s'), s.listen(), "
        "socket.socket(socket.AF_UNIX).connect('s'))",
    }
    found = room.tried(room.spec(Network.NONE, own_user=True), tries)
    assert found == {"abstract": "EPERM", "own": "done"}


def test_processes_outside_cannot_be_signalled_or_traced(room: Room) -> None:
    user = room.user
    argv = ["setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups", "cat"]
    if os.geteuid() != 0:
        argv = ["cat"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as out:
        try:
            assert out.stdin is not None and out.stdout is not None
            out.stdin.write(b"ready")
            assert out.stdout.read(5) == b"ready"
            pid = out.pid
            tries = {
                "signal": f"os.kill({pid}, 9)",
                "environ": f"open('/proc/{pid}/environ').read()",
                "memory": f"open('/proc/{pid}/mem', 'rb')",
                "root": f"os.listdir('/proc/{pid}/root')",
                "files": f"os.readlink('/proc/{pid}/fd/0')",
                "init": "open('/proc/1/environ').read()",
                "oom": f"open('/proc/{pid}/oom_score_adj', 'w').write('0')",
                "limits": f"resource.prlimit({pid}, resource.RLIMIT_CPU)",
                "priority": f"os.setpriority(os.PRIO_PROCESS, {pid}, 19)",
                "priorities": "os.setpriority(os.PRIO_USER, 0, 19)",
                "affinity": f"os.sched_setaffinity({pid}, {{0}})",
                "scheduler": f"os.sched_setscheduler({pid}, 0, os.sched_param(0))",
                "parameters": f"os.sched_setparam({pid}, os.sched_param(0))",
            }
            found = room.tried(room.spec(own_user=False), tries)
            assert set(found.values()) <= {"EACCES", "EPERM"}, found
            assert out.poll() is None
            del tries["signal"], tries["init"], tries["root"], tries["priorities"]
            assert set(room.tried(None, tries).values()) == {"done"}
            own = {
                "limits": "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
                "priority": "os.setpriority(os.PRIO_PROCESS, 0, 19)",
                "nice": "os.nice(1)",
                "affinity": "os.sched_setaffinity(0, os.sched_getaffinity(0))",
            }
            assert set(room.tried(room.spec(own_user=False), own).values()) == {"done"}
        finally:
            out.kill()


SCRIPTS = {
    "git": """
        git init -q . && echo a > a && git add a && git commit -qm one && git gc -q
        git clone -q --no-local . ../tmp/clone && git -C ../tmp/clone log --oneline | grep -c .
    """,
    "gcc": """
        printf '#include <stdio.h>\\nint main(void) { puts("ran"); return 0; }' > a.c
        gcc -o a a.c && ./a
    """,
    "tar": "mkdir d && echo x > d/f && tar czf d.tgz d && rm -r d && tar xzf d.tgz && cat d/f",
    "sqlite3": "sqlite3 db 'create table t(x); select count(*) from t;'",
    "node": 'node -e \'console.log(require("child_process").execSync("echo child").toString())\'',
    "bash": "bash -lc 'echo ${BASH_VERSION} <(true)'",
    "perl": "perl -MPOSIX -e 'print POSIX::getpid()'",
}


@pytest.mark.parametrize("own_user", [True, False])
@pytest.mark.parametrize("tool", sorted(SCRIPTS))
def test_ordinary_programs_work(room: Room, tool: str, own_user: bool) -> None:
    if shutil.which(tool, path="/usr/local/bin:/usr/bin:/bin") is None:
        pytest.skip(f"{tool} is not installed")
    env = {
        "HOME": str(room.space / "home"),
        "TMPDIR": str(room.space / "tmp"),
        "PATH": "/usr/local/bin:/usr/bin:/bin",
    }
    confinement = room.confined(room.spec(own_user=own_user))
    result = confinement.run(["sh", "-ec", SCRIPTS[tool]], cwd=room.space / "project", env=env)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def test_binds_are_granted_as_they_say(room: Room, data: Path) -> None:
    for name in ("readable", "writable"):
        (data / name).mkdir()
        os.chown(data / name, room.user.uid, room.user.gid)
    base = room.spec()
    binds = (
        *base.binds,
        Bind(data / "readable", "/readable"),
        Bind(data / "writable", "/writable", writable=True),
    )
    spec = LandlockSpec(base.tree, base.home, base.tmp, base.network, binds, True)
    tries = {name: f"open('{data}/{name}/new', 'w')" for name in ("readable", "writable")}
    assert room.tried(spec, tries) == {"readable": "EACCES", "writable": "done"}


def test_the_gaps_are_named(room: Room) -> None:
    def gaps(network: Network, own_user: bool) -> str:
        return " ".join(uncovered(room.spec(network, own_user), ABI))

    assert "UDP" in gaps(Network.OPEN, True)
    assert "UDP" not in gaps(Network.NONE, True)
    assert "pseudo-terminals" in gaps(Network.NONE, False)
    assert "pseudo-terminals" not in gaps(Network.NONE, True)
    for text in ("stat", "Other processes can be seen"):
        assert text in gaps(Network.NONE, True)
    assert ("hub cannot be reached" in gaps(Network.NONE, False)) is (ABI < 9)
    assert "hub cannot be reached" not in gaps(Network.NONE, True)
    assert not unix_sockets_allowed(room.spec(own_user=False), 8)
    assert unix_sockets_allowed(room.spec(own_user=False), 9)


def test_no_secret_part_of_etc_is_granted() -> None:
    secret = ("shadow", "sudoers", "private", "ssh_host", "krb5.keytab", "environment")
    assert not [path for path in etc_paths() if any(word in path for word in secret)]
