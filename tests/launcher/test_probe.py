"""The probe says what is refused and, above all, what is not."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from carrel.launcher.probes import attempt as attempts
from carrel.launcher.probes import files, run_probe
from carrel.launcher.probes.attempt import (
    NoTarget,
    ProbeAttempt,
    ProbeRefused,
    Targets,
    carry_out,
    give_up,
)
from carrel.launcher.probes.probe import ATTEMPTS
from tests.accounts import PYTHON, Account, run_as

SECRET = "carrel-probe-secret"
MOST_CPU_S = 0.05

# What an ordinary process of the host can do, where nothing stops it.
OPEN_TO_ALL = {
    "read {canary}",
    "read {canary} through /proc/self/root",
    "read {canary} through ..",
    "read what is forbidden through /proc/{pid}/root",
    "read what is forbidden through /proc/{pid}/cwd",
    "write {canary}",
    "write {folder}",
    "hard link {canary} into the sandbox",
    "move a file out to {folder}",
    "give a file a set-id bit by chmod",
    "give a file a set-id bit by fchmod",
    "give a file a set-id bit by fchmodat",
    "give a file a set-id bit by fchmodat2",
    "give a file a set-id bit by open",
    "give a file a set-id bit by openat",
    "give a file a set-id bit by O_TMPFILE",
    "give a file a set-id bit by openat2",
    "give a file a set-id bit by creat",
    "give a file a set-id bit by mknod",
    "give a file a set-id bit by mknodat",
    "take a descriptor by its number",
    "find a process outside",
    "read environ of a process outside",
    "read maps of a process outside",
    "read fd/0 of a process outside",
    "find the host's environment",
    "signal a process outside",
    "signal a process outside by pidfd",
    "set the priority of a process outside",
    "limit a process outside",
    "connect to the host's loopback",
    "connect to an abstract socket of the host",
    "connect to the socket {socket}",
    "add a key",
    "ask a terminal for TIOCSTI",
    "ask a terminal for TIOCSTI with a high bit",
    "make all memory executable",
    "make a user namespace (clone)",
    "make a user namespace (clone3)",
    "NoNewPrivs of the sandbox",
    "Seccomp of the sandbox",
    "make a user namespace",
}
# What the root of a user namespace can do.
OPEN_TO_ROOT = {
    "mount a file system",
    "unmount /proc",
    "open a file system (fsopen)",
    "clone a mount (open_tree)",
    "change the root (chroot)",
    "make a network interface",
    "CapEff of the sandbox",
    "be root",
    "take a capability",
    "become root",
    "make a mount namespace",
    "make a net namespace",
}

_RUN = """
import json, os, sys, time
from carrel.launcher.probes import files, run_probe
if {root}:
    from tests.runtimes.escapes.inside import call
    uid, gid = os.getuid(), os.getgid()
    call("unshare", 0x10000000 | 0x00020000 | 0x40000000)
    maps = {{"setgroups": "deny", "uid_map": f"0 {{uid}} 1", "gid_map": f"0 {{gid}} 1"}}
    for name, text in maps.items():
        with open(f"/proc/self/{{name}}", "w") as file:
            file.write(text)
targets = json.loads({targets!r})
modules, started = set(sys.modules), time.process_time()
results = run_probe(targets)
spent = time.process_time() - started
print(json.dumps([results, spent, sorted(set(sys.modules) - modules)]))
"""


def _user_namespaces() -> bool:
    """Some machines forbid them to ordinary users."""
    setting = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    return not setting.exists() or setting.read_text().strip() == "0"


class Host:
    """Things of the host that an account can reach."""

    def __init__(self, stack: ExitStack, folder: Path, account: Account) -> None:
        self.account = account
        self.folder = self._own(folder / "other")
        self.scratch = self._own(folder / "scratch")
        self.canary = self.folder / "canary"
        self.canary.write_text("canary")
        self._give(self.canary)
        self.socket = folder / "socket"
        self.port = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
        for address in (f"\0{SECRET}-{os.getpid()}", str(self.socket)):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(address)
            listener.listen()
        self.socket.chmod(0o666)
        self.process = self._process(stack)

    def _give(self, path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, self.account.uid, self.account.gid)

    def _own(self, path: Path) -> Path:
        path.mkdir()
        self._give(path)
        return path

    def _process(self, stack: ExitStack) -> int:
        identity = (self.account.uid, self.account.gid, ()) if os.geteuid() == 0 else (None,) * 3
        process = subprocess.Popen(
            ["cat"],
            env={"PATH": os.environ["PATH"], "SECRET": SECRET},
            stdin=subprocess.PIPE,
            user=identity[0],
            group=identity[1],
            extra_groups=identity[2],
        )
        assert process.stdin is not None
        stack.callback(process.wait, 10)
        stack.callback(process.stdin.close)
        return process.pid

    def targets(self) -> dict[str, object]:
        return {
            "runtime": "bubblewrap",
            "network": "none",
            "forbidden_paths": [str(self.canary), str(self.folder)],
            "host_pid": self.process,
            "host_loopback_port": self.port,
            "abstract_socket": f"{SECRET}-{os.getpid()}",
            "unix_sockets": [str(self.socket)],
            "secret_env": SECRET,
            "scratch": str(self.scratch),
        }

    def named(self, names: set[str]) -> set[str]:
        known = {"canary": self.canary, "folder": self.folder, "socket": self.socket}
        return {name.format(pid=self.process, **known) for name in names}


@pytest.fixture
def host(data: Path, ordinary_user: Account) -> Iterator[Host]:
    data.chmod(0o755)
    with ExitStack() as stack:
        yield Host(stack, data, ordinary_user)


def _probe(host: Host, *, root: bool) -> tuple[dict[str, str], float, list[str]]:
    """What got through, the processor time it took, and the modules it imported."""
    program = _RUN.format(root=root, targets=json.dumps(host.targets()))
    done = run_as(host.account, [PYTHON, "-c", program])
    assert done.returncode == 0, done.stderr
    results, spent, imported = json.loads(done.stdout)
    return {one["name"]: one["detail"] for one in results if not one["refused"]}, spent, imported


def test_nothing_confined_is_seen(host: Host) -> None:
    through, _spent, _imported = _probe(host, root=False)
    expected = host.named(OPEN_TO_ALL)
    if not _user_namespaces():
        expected = {name for name in expected if "user namespace" not in name}
    assert expected - through.keys() == set()


@pytest.mark.skipif(not _user_namespaces(), reason="user namespaces are forbidden here")
def test_privileges_are_seen(host: Host) -> None:
    through, _spent, _imported = _probe(host, root=True)
    assert OPEN_TO_ROOT - through.keys() == set()


def test_it_is_quick_imports_nothing_and_leaves_nothing(host: Host) -> None:
    _through, spent, imported = _probe(host, root=False)
    assert imported == []
    assert spent < MOST_CPU_S
    assert os.listdir(host.scratch) == []
    assert os.listdir(host.folder) == ["canary"]
    assert host.canary.read_text() == "canary"


def _fail(error: Exception) -> Callable[[Targets, str], str]:
    def act(_targets: Targets, _subject: str) -> str:
        raise error

    return act


def _hang(_targets: Targets, _subject: str) -> str:
    while True:
        signal.pause()


@contextmanager
def _alarm() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, give_up)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    ("act", "refused", "detail"),
    [
        (_fail(PermissionError(errno.EPERM, "no")), True, "EPERM"),
        (_fail(ProbeRefused("nothing there")), True, "nothing there"),
        (lambda _targets, _subject: "read it", False, "read it"),
        (_fail(OSError(errno.EINVAL, "odd")), False, "unexpected EINVAL: [Errno 22] odd"),
        (_fail(KeyError("mistake")), False, "KeyError: 'mistake'"),
        (_fail(NoTarget("'x' was not given")), False, "NoTarget: 'x' was not given"),
        (_hang, False, "it did not come to an end"),
    ],
)
def test_only_a_refusal_counts_as_one(
    act: Callable[[Targets, str], str],
    refused: bool,
    detail: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempts, "ATTEMPT_TIMEOUTS_S", (0.05, 0.1))
    with _alarm():
        (found,) = carry_out(ProbeAttempt("try", act), {})
    assert (found["refused"], found["name"]) == (refused, "try")
    assert str(found["detail"]).endswith(detail)


def test_what_was_starved_once_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of a processor of a busy machine is no way out of a sandbox."""
    monkeypatch.setattr(attempts, "ATTEMPT_TIMEOUTS_S", (0.05, 10.0))
    tries: list[int] = []

    def starved(targets: Targets, subject: str) -> str:
        tries.append(1)
        if len(tries) == 1:
            _hang(targets, subject)
        raise PermissionError(errno.EPERM, "no")

    with _alarm():
        (found,) = carry_out(ProbeAttempt("try", starved), {})
    assert (found["refused"], len(tries)) == (True, 2)


@pytest.mark.parametrize(
    "missing",
    ["forbidden_paths", "host_pid", "secret_env", "host_loopback_port", "abstract_socket"],
)
def test_a_missing_target_proves_nothing(host: Host, missing: str) -> None:
    """Tells so before anything is tried."""
    targets = {key: value for key, value in host.targets().items() if key != missing}
    lacking = [attempt for attempt in ATTEMPTS if not _has_subjects(attempt, targets)]
    assert lacking
    for attempt in lacking:
        (found,) = carry_out(attempt, targets)
        assert (found["refused"], found["detail"]) == (
            False,
            f"NoTarget: {missing!r} was not given",
        )


def _has_subjects(attempt: ProbeAttempt, targets: Targets) -> bool:
    try:
        return bool(attempt.over(targets))
    except NoTarget:
        return False


def test_the_way_to_what_is_shown_may_be_seen(tmp_path: Path) -> None:
    """A bind inside of a forbidden folder, at its own path."""
    (tmp_path / "mirrors" / "one").mkdir(parents=True)
    targets = {"forbidden_paths": [str(tmp_path)], "shown": [str(tmp_path / "mirrors" / "one")]}
    (reading, *_others) = files.ATTEMPTS
    with _alarm():
        (found,) = carry_out(reading, targets)
        assert (found["refused"], found["detail"]) == (True, "nothing but what is shown by design")
        (tmp_path / "more").touch()
        (found,) = carry_out(reading, targets)
    assert (found["refused"], found["detail"]) == (False, "listed: more")


@pytest.mark.parametrize(("runtime", "network"), [("process", "none"), ("bubblewrap", "some")])
def test_what_claims_nothing_cannot_be_proven(runtime: str, network: str) -> None:
    with pytest.raises(ValueError, match=r"the probe does not know"):
        run_probe({"runtime": runtime, "network": network})


def test_names_are_told_apart() -> None:
    """Runtimes name attempts that they do not cover."""
    names = [attempt.name for attempt in ATTEMPTS if "{}" not in attempt.name]
    assert len(names) == len(set(names))
