"""The forked children: those that become commands, and one that becomes a sandbox's bubblewrap.

None returns. What goes wrong is written to the status pipe as one JSON line; the pipe
closes by itself when the child executes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from carrel.launcher import calls, confine, wire
from carrel.launcher.probes import run_probe
from carrel.linux import ids, landlock, mounts, namespaces, seccomp
from carrel.linux.files import sealed_copy

if TYPE_CHECKING:
    # Only then: a program's own interpreter runs this, too, and is to load little.
    from carrel.launcher.messages import (
        CallPlan,
        CommandPlan,
        SandboxBase,
        SandboxPlan,
        ZygoteRequest,
    )

STAGE = "/tmp"
"""Where bubblewrap's private mount namespace shows what it is to bind. As root it runs
as the sandbox's own user, who cannot walk the data folder; every system has a /tmp, and
covering it there hides it from nobody else."""
SECCOMP_FD = 10
INFO_FD = 11
ALIVE_FD = 12
FORK = b"f"
FIRST_LINE = 256
"""So much of a script the kernel looks at for its interpreter."""
_USERS = "stage:users"
EXECUTING = b"x"
"""The last word of a child before it executes; a terminal goes along."""

Fork = Callable[[], int]


MOST_TEXT = 300
"""Characters of what went wrong: the name of a file in it can be as long as a caller likes, and
more than `loop.MOST_BYTES`, of a warm process 4096 bytes, the launcher does not hear."""


def report(status: int, message: dict[str, Any]) -> None:
    if "text" in message:
        message = {**message, "text": str(message["text"])[:MOST_TEXT]}
    os.write(status, json.dumps(message).encode() + b"\n")


@contextlib.contextmanager
def guard(status: int, step: str) -> Iterator[None]:
    """Ends the child with a report when a step fails."""
    try:
        yield
    except BaseException as error:
        number = error.errno if isinstance(error, OSError) else 0
        text = f"{type(error).__name__}: {error}"
        report(status, {"step": step, "errno": number or 0, "text": text})
        os._exit(127)


def become_forker(channel: int, fork: Fork = namespaces.fork_to_parent) -> NoReturn:
    """Makes children for the launcher, one for each channel that it is sent, and answers with
    their numbers; 0 when the kernel has no room for one. Ends with the launcher.

    Where a program's modules are loaded, `fork` is the system's own, which they have handlers
    for. Such a child is ours, and goes unheard; what it forks is the launcher's once it ends.
    """
    confine.reset_signals()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    confine.close_others(channel)
    source = socket.socket(fileno=channel)
    while True:
        order, descriptors = wire.receive_descriptors(source, len(FORK), 1)
        if order != FORK or len(descriptors) != 1:
            os._exit(0)
        try:
            pid = fork()
        except OSError:
            pid = -1
        if pid == 0:
            become_waiting_child(descriptors[0], fork)
        source.send(str(max(pid, 0)).encode())
        os.close(descriptors[0])


def become_waiting_child(channel: int, fork: Fork = namespaces.fork_to_parent) -> NoReturn:
    """Waits for orders, which say what to become; without any it ends."""
    confine.reset_signals()
    confine.raise_oom_score()
    confine.close_others(channel)
    source = socket.socket(fileno=channel)
    received = wire.receive(source)
    if received is None:
        os._exit(0)
    orders, descriptors = received
    if orders["become"] == "holder":
        named = dict(zip(orders["descriptors"], descriptors, strict=True))
        become_bubblewrap(orders["plan"], named)
    if orders["become"] == "zygote":
        become_zygote(orders["plan"], *descriptors)
    if orders["become"] == "sockets":
        become_sockets(orders["plan"]["families"], source, *descriptors)
    if orders["become"] == "command":
        count = 3 + orders["plan"]["given"]
        if orders["home"]:
            # The launcher has mounts of its own; what has no namespaces sees the host's.
            namespaces.setns(descriptors[-1], namespaces.CLONE_NEWNS)
            os.close(descriptors.pop())
        become_command(orders["plan"], descriptors[:count], descriptors[count:])
    become_standby(orders["base"], source, descriptors, fork)


def become_standby(
    base: SandboxBase, source: socket.socket, descriptors: list[int], fork: Fork
) -> NoReturn:
    """Enters a sandbox, gives everything up, waits for orders and becomes their command.

    `descriptors`: the status pipe and the socket for the orders. The namespaces to enter
    come from `source` when they exist.
    """
    status, channel = map(confine.above_given, descriptors)
    with guard(status, "cgroup"):
        confine.join_groups(base["join"])
    received = wire.receive(source)
    if received is None:
        os._exit(0)
    names, late = received[0]["enter"], received[0]["late"]
    held = dict(zip(names, received[1][: len(names)], strict=True))
    placed = dict(zip(late, received[1][len(names) :], strict=True))
    with guard(status, "namespace"):
        namespaces.set_dumpable(False)
        confine.enter(held, placed)
        child = fork()
    if child:
        report(status, {"pid": child})
        os._exit(0)
    with guard(status, "identity"):
        os.setsid()
        os.umask(0o022)
        confine.close_others(status, channel)
        kept = base.get("capabilities", 0)
        namespaces.drop_bounding_set(kept)
        confine.become(base["uid"], base["gid"])
        confine.give_up_privileges(kept)
    with guard(status, "filter"):
        if base["scope_sockets"]:
            landlock.scope_abstract_sockets()
        seccomp.install(bytes.fromhex(base["seccomp"]))
    sender = socket.socket(fileno=channel)
    orders = wire.receive(sender)
    if orders is None:
        os._exit(0)
    plan: Any = orders[0]
    streams = orders[1]
    if not plan:
        # The streams came ahead.
        orders = wire.receive(sender)
        if orders is None:
            os._exit(0)
        plan = orders[0]
    with guard(status, "streams"):
        confine.set_streams(streams)
        if plan.get("takes_terminal"):
            # One that is somebody's still is read and written all the same.
            with contextlib.suppress(OSError):
                confine.take_terminal(0)
        terminal = _terminal(plan)
        confine.close_others(status, channel, *terminal, *range(3, len(streams)))
    _execute(plan, status, sender, terminal)


def become_sockets(families: list[int], source: socket.socket, net: int) -> NoReturn:
    """Makes TCP sockets in another network, and gives them back; says why not."""
    try:
        confine.enter_network(net)
        kind = socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        made = []
        for family in families:
            # A kernel may have no IPv6.
            with contextlib.suppress(OSError):
                made.append(socket.socket(family, kind))
        socket.send_fds(source, [b"made"], [one.fileno() for one in made])
    except OSError as error:
        source.send(str(error).encode()[:200])
    os._exit(0)


def become_command(plan: CommandPlan, streams: list[int], writers: list[int]) -> NoReturn:
    """Right here, without namespaces.

    `writers`: the status pipe, the socket for a terminal, and with a keeper the pipe on
    which it tells the end.
    """
    status, channel = map(confine.above_given, writers[:2])
    with guard(status, "cgroup"):
        confine.join_groups(plan["join"])
    if plan["keeper"]:
        _keep(status, writers[2])
    else:
        report(status, {"pid": os.getpid()})
    with guard(status, "streams"):
        os.setsid()
        os.umask(0o022)
        confine.set_streams(streams)
        # Before Landlock takes the devices away.
        terminal = _terminal(plan)
        confine.close_others(status, channel, *terminal, *range(3, len(streams)))
    if plan["landlock"] is not None:
        with guard(status, "landlock"):
            shown = bool(plan["shared_memory"]) and confine.show_shared_memory(
                plan["shared_memory"]
            )
            confine.apply_landlock(plan["landlock"], shared_memory=shown)
    with guard(status, "identity"):
        if plan["confined"]:
            namespaces.drop_bounding_set()
        if plan["uid"] is not None:
            confine.become(plan["uid"], plan["gid"])
        if plan["confined"]:
            confine.give_up_privileges()
    with guard(status, "filter"):
        if plan["seccomp"]:
            seccomp.install(bytes.fromhex(plan["seccomp"]))
    _execute(plan, status, socket.socket(fileno=channel), terminal)


def _execute(
    plan: CommandPlan, status: int, sender: socket.socket, terminal: list[int]
) -> NoReturn:
    with guard(status, "cwd"):
        os.chdir(plan["cwd"])
    if plan["call"] is not None:
        _call(plan, plan["call"], status, sender, terminal)
    with guard(status, "exec"):
        socket.send_fds(sender, [EXECUTING], terminal)
        # Not before: with less open files the kernel may refuse to send one of ours.
        confine.set_limits(plan["rlimits"])
        if plan["probe"] is not None:
            _probe(plan["probe"], status)
        try:
            execute(plan["argv"], plan["env"])
        except MissingInterpreter as missing:
            report(status, {"step": "interpreter", "text": str(missing)})
    os._exit(127)


class MissingInterpreter(Exception):
    """A script is there, and what its first line names is not."""


def execute(argv: list[str], env: dict[str, str]) -> NoReturn:
    """As `os.execvpe`, which imports a module for it: in a sandbox the interpreter's files may
    be missing, or the sandbox's own. Nothing is imported once a child is inside."""
    program = argv[0]
    folders = [""] if "/" in program else env.get("PATH", os.defpath).split(":")
    problems: list[OSError] = []
    for folder in folders:
        try:
            os.execve(os.path.join(folder, program), argv, env)
        except OSError as error:
            problems.append(error)
    # What was found and cannot be executed, rather than where it is missing.
    missing = (FileNotFoundError, NotADirectoryError)
    found = next((one for one in problems if not isinstance(one, missing)), None)
    if found is None:
        for folder in folders:
            needed = _interpreter(os.path.join(folder, program))
            if needed:
                raise MissingInterpreter(needed)
    raise found or problems[-1]


def _interpreter(path: str) -> str:
    """What the first line of a script names; empty where there is no script. Anything may be in
    the file, and be put there meanwhile."""
    try:
        script = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        first = os.read(script, FIRST_LINE)
    except OSError:
        return ""
    finally:
        os.close(script)
    words = first.split(b"\n")[0][2:].split()
    return os.fsdecode(words[0]) if first.startswith(b"#!") and words else ""


def _call(
    plan: CommandPlan, call: CallPlan, status: int, sender: socket.socket, terminal: list[int]
) -> NoReturn:
    """Goes on as a function instead of a program; to the launcher it looks the same."""
    with guard(status, "call"):
        function = calls.find(call)
        socket.send_fds(sender, [EXECUTING], terminal)
        confine.set_limits(plan["rlimits"])
    sender.close()
    for descriptor in (status, *terminal):
        os.close(descriptor)
    # One that was forked from the launcher has the launcher's memory, which is nobody's. Others
    # can take what a dumpable one has open: not before all that leads to the launcher is closed.
    namespaces.set_dumpable(plan["warm"])
    namespaces.set_name(os.path.basename(plan["argv"][0]))
    calls.become(function, call["argument"], plan["argv"], plan["env"])


def _terminal(plan: CommandPlan) -> list[int]:
    """Makes it, takes it as our own, and gives back the other side, for the launcher."""
    if plan["pty"] is None:
        return []
    ours, theirs = confine.open_terminal(plan["pty"])
    if os.geteuid() == 0 and plan["uid"] is not None and plan["gid"] is not None:
        os.fchown(theirs, plan["uid"], plan["gid"])
    confine.take_terminal(theirs)
    confine.set_streams([theirs, theirs, theirs])
    os.close(theirs)
    return [ours]


def _probe(targets: dict[str, Any], status: int) -> NoReturn:
    """The proof of isolation: our own code, in memory already, so that a sandbox needs no
    interpreter of its own. Its findings go to standard output."""
    os.close(status)
    findings = json.dumps(run_probe(targets)).encode()
    while findings:
        findings = findings[os.write(1, findings) :]
    os._exit(0)


def _keep(status: int, end: int) -> None:
    """Without namespaces and cgroups: a keeper stays above the command, inherits all that
    detaches itself, and ends when nothing is left. Returns in the command's process."""
    with guard(status, "keeper"):
        os.setsid()
        namespaces.become_subreaper()
        child = os.fork()
    if child == 0:
        return
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # The launcher may be gone when there is something to tell; then we keep on.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    report(status, {"pid": child, "keeper": os.getpid()})
    confine.close_others(end)
    while True:
        try:
            pid, code, usage = os.wait4(-1, 0)
        except ChildProcessError:
            os._exit(0)
        if os.WIFSTOPPED(code):
            # As the launcher's loop does: it has asked to be traced by us.
            os.kill(pid, signal.SIGKILL)
        elif pid == child:
            message = {"ended": code, "cpu": usage.ru_utime + usage.ru_stime}
            message["rss"] = usage.ru_maxrss * 1024
            with contextlib.suppress(BrokenPipeError):
                report(end, message)


def become_zygote(plan: ZygoteRequest, channel: int, log: int) -> NoReturn:
    """Executes the interpreter of a program whose modules it is to load, without any rights
    but its user's. What is wrong is told on the channel, as the program tells it there."""
    status = confine.above_given(channel)
    with guard(status, "identity"):
        os.setsid()
        os.umask(0o077)
        if plan["uid"] is not None:
            namespaces.drop_bounding_set()
            confine.become(plan["uid"], plan["gid"])
        confine.give_up_privileges()
    with guard(status, "exec"):
        os.chdir("/")
        confine.set_streams([os.open("/dev/null", os.O_RDWR), log, log, channel])
        confine.close_others(3, status)
        folder = os.path.dirname(os.path.abspath(__file__))
        argv = [plan["python"], "-I", f"{folder}/zygote.py", "--channel", "3"]
        argv += ["--package", os.path.dirname(os.path.dirname(folder))]
        argv += ["--preload", ",".join(plan["preload"])]
        for path in plan["load"]:
            argv += ["--load", path]
        os.execve(_program(plan["python"]), argv, plan["env"])


def _program(python: str) -> str | int:
    """A fork of it is in a sandbox, and /proc/self/exe leads there to the host's file: where
    that is its user's own, it must be one that cannot be written."""
    owned = os.stat(python).st_uid == os.geteuid()
    return sealed_copy(python, "carrel-zygote") if owned or os.access(python, os.W_OK) else python


def become_bubblewrap(plan: SandboxPlan, descriptors: dict[str, int]) -> NoReturn:
    """Stages the mounts, takes on the sandbox's identity and executes bubblewrap.

    `descriptors`: `status`, `stdin`, `stdout`, `stderr`, `seccomp`, `info`, `alive`,
    `stage:NAME` for each detached mount, and `user` and `mnt`, or `bare`, and `net`, where it
    starts in namespaces.
    """
    descriptors = {name: _above(descriptor) for name, descriptor in descriptors.items()}
    status = descriptors["status"]
    with guard(status, "cgroup"):
        confine.join_groups(plan["join"])
    with guard(status, "stage"):
        os.setsid()
        if "mnt" in descriptors:
            namespaces.setns(descriptors["user"], namespaces.CLONE_NEWUSER)
            namespaces.setns(descriptors["mnt"], namespaces.CLONE_NEWNS)
            if "paths" in plan:
                _stage_paths(plan, descriptors)
        elif os.geteuid() == 0:
            if "bare" in descriptors:
                namespaces.setns(descriptors["bare"], namespaces.CLONE_NEWNS)
            _stage(plan["stage"], descriptors)
        if "net" in descriptors:
            namespaces.setns(descriptors["net"], namespaces.CLONE_NEWNET)
    with guard(status, "identity"):
        if _USERS in descriptors:
            confine.become_root(descriptors[_USERS])
        elif os.geteuid() == 0:
            confine.become(plan["uid"], plan["gid"])
    with guard(status, "exec"):
        os.chdir("/")
        _place(descriptors)
        env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", **plan.get("mark", {})}
        os.execve(plan["argv"][0], plan["argv"], env)


def _stage_paths(plan: SandboxPlan, descriptors: dict[str, int]) -> None:
    """For an ordinary user, in the namespaces of the tree: only there may we mount, and give files
    to its other ids. Who becomes root in the sandbox may not even walk the data folder."""
    for point in plan.get("points", ()):
        mounts.make_mount_point(**point, uid=plan["uid"], gid=plan["gid"])
    for link in plan.get("links", ()):
        mounts.make_link(**link, uid=plan["uid"], gid=plan["gid"])
    for name, path in plan["paths"].items():
        descriptors[f"stage:{name}"] = _above(mounts.clone_mount(path))
    _stage([*plan["paths"]], descriptors)
    users = plan["users"]
    assert users["first"] is not None
    descriptors[_USERS] = _above(ids.fork_ids(users["own"], users["host"], users["first"]))


def _stage(items: list[str], descriptors: dict[str, int]) -> None:
    namespaces.unshare(namespaces.CLONE_NEWNS)
    namespaces.mount_tmpfs(STAGE, "mode=0755,size=64k")
    for name in items:
        if f"stage:{name}" == _USERS:
            continue
        descriptor = descriptors[f"stage:{name}"]
        target = f"{STAGE}/{name}"
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.mkdir(target, 0o755)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        mounts.attach(descriptor, target)


def _place(descriptors: dict[str, int]) -> None:
    """The numbers that bubblewrap's arguments name."""
    wanted = {0: "stdin", 1: "stdout", 2: "stderr"}
    wanted |= {SECCOMP_FD: "seccomp", INFO_FD: "info", ALIVE_FD: "alive"}
    for number, name in wanted.items():
        os.dup2(descriptors[name], number, inheritable=True)
    confine.close_others(*(number for number in wanted if number > 2), descriptors["status"])


def _above(descriptor: int) -> int:
    """A copy whose number none of the fixed ones will overwrite."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, ALIVE_FD + 1)
