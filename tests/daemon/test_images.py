"""Spaces with an image: what their commands see, what stays and what goes, and what a hostile image
or a hostile neighbour in the space can do."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from carrel.domain.hub import HUB_SOCKET, SHELL_SOCKET
from carrel.launcher.client import Launcher
from carrel.linux.ids import FIRST_RANGE
from tests.busybox import busybox_image
from tests.daemon.rig import LOOK_S, Daemon, bad, fresh_daemon, good
from tests.ranges import GIVES

ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="an ordinary user has one id")


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    with fresh_daemon() as found:
        yield found


@pytest.fixture
def client(shared: Daemon) -> httpx.Client:
    return shared.local()


@pytest.fixture
def image(shared: Daemon) -> Path:
    return busybox_image(shared.data, user="worker")


def make(client: httpx.Client, image: Path | str, **more: Any) -> str:
    return str(good(client.post("/v1/spaces", json={"image": str(image), **more}))["id"])


def sh(client: httpx.Client, space: str, script: str, **more: Any) -> tuple[int | None, str]:
    body = {"argv": ["sh", "-c", script], **more}
    done = good(client.post(f"/v1/spaces/{space}/exec", json=body))
    return done["run"]["exit"]["code"], done["stdout"] + done["stderr"]


def test_commands_see_the_image_and_the_agent_the_host(client: httpx.Client, image: Path) -> None:
    space = make(client, image)
    assert sh(client, space, "test -x /bin/busybox && test ! -e /usr && id -u") == (0, "0\n")
    assert sh(client, space, "test -d /usr/bin && id -un", place="agent") == (0, "user\n")
    assert sh(client, space, "echo one > a; mkdir -p d") == (0, "")
    assert sh(client, space, "cat a && echo two >> a && echo x > d/b", place="agent")[0] == 0
    assert sh(client, space, "cat a; rm -r d; echo x > /tmp/t")[1] == "one\ntwo\n"
    assert sh(client, space, "cat /tmp/t", place="agent") == (0, "x\n")
    shown = good(client.get(f"/v1/spaces/{space}"))["image"]
    assert (shown["name"], shown["user"]) == (str(image), "root")
    assert bool(shown["notes"]) is not GIVES
    plain = good(client.post("/v1/spaces", json={}))["id"]
    body = {"argv": ["true"], "place": "dev"}
    bad(client.post(f"/v1/spaces/{plain}/exec", json=body), 422, "command_invalid")


def test_a_system_is_the_spaces_own_and_goes_with_it(
    client: httpx.Client, image: Path, shared: Daemon
) -> None:
    one = make(client, image)
    other = make(client, "from/busybox")
    assert sh(client, one, "echo mine > /etc/motd; rm /bin/true; mkdir /opt") == (0, "")
    good(client.post(f"/v1/spaces/{one}/stop", json={}))
    good(client.post(f"/v1/spaces/{one}/start", json={}))
    assert sh(client, one, "cat /etc/motd; test ! -e /bin/true && test -d /opt") == (0, "mine\n")
    assert sh(client, other, "test ! -e /etc/motd && test -e /bin/true")[0] == 0
    assert not (image / "etc/motd").exists()
    for space in (one, other):
        good(client.delete(f"/v1/spaces/{space}", params={"force": "true"}))
        assert not (shared.data / "spaces" / space).exists()
        assert space not in Path("/proc/mounts").read_text()
    ranges = shared.data / "ranges"
    held = {os.readlink(path) for path in ranges.iterdir()} if ranges.exists() else set()
    assert held.isdisjoint({one, other})
    assert one not in {path.name for path in (shared.data / "images").rglob("*")}


@needs_root
def test_whoever_it_is_inside_is_nobody_outside(
    client: httpx.Client, image: Path, shared: Daemon
) -> None:
    space = make(client, image)
    script = "touch /made && chown 1234:1234 /made && touch in-tree && chmod 4755 /made"
    assert sh(client, space, script) == (0, "")
    made = (shared.data / "spaces" / space / "system/upper/made").stat()
    assert made.st_uid >= FIRST_RANGE and made.st_mode & 0o4000
    assert (shared.data / "spaces" / space).stat().st_mode & 0o077 == 0
    tree = (shared.data / "spaces" / space / "project/in-tree").stat()
    assert tree.st_uid not in (0, 1234)
    # A neighbour with an image of its own has other ids.
    other = make(client, image)
    assert sh(client, other, "touch /made") == (0, "")
    theirs = (shared.data / "spaces" / other / "system/upper/made").stat()
    assert theirs.st_uid != made.st_uid
    found, text = sh(client, space, "nc -l -p 80 & sleep 0; kill $!; echo ok")
    assert (found, text.splitlines()[-1]) == (0, "ok")


def test_a_user_of_the_image(client: httpx.Client, image: Path, tmp_path: Path) -> None:
    """By an archive with a configuration it would be the image's; a folder says root."""
    space = make(client, image)
    code, text = sh(client, space, "id -u; echo $HOME $USER; cat /proc/self/status")
    lines = text.splitlines()
    assert (code, lines[:2]) == (0, ["0", "/root root"])
    kept = {line.split()[0]: line.split()[1] for line in lines if line.startswith("Cap")}
    assert int(kept["CapEff:"], 16) & (1 << 21 | 1 << 12 | 1 << 19 | 1 << 27) == 0, kept
    assert bool(int(kept["CapEff:"], 16)) is GIVES


def test_the_proof_is_made_in_both(client: httpx.Client, image: Path) -> None:
    plain = good(client.post("/v1/spaces", json={}))["id"]
    alone = good(client.post(f"/v1/spaces/{plain}/verify"))
    both = good(client.post(f"/v1/spaces/{make(client, image)}/verify"))
    assert both["holds"] and len(both["attempts"]) > len(alone["attempts"]) + 50


def test_one_network_of_their_own(client: httpx.Client, image: Path) -> None:
    """The same port in two spaces, reached from both sandboxes of each and no other."""
    spaces = [make(client, image) for _ in range(2)]
    for space in spaces:
        listen = f"(echo {space} | nc -l -p 80) > /dev/null 2>&1 & echo begun"
        code, _ = sh(client, space, listen)
        assert code == 0
    for space in spaces:
        ask = "until busybox nc 127.0.0.1 80 </dev/null 2>/dev/null; do :; done"
        code, text = sh(client, space, ask, place="agent", timeout_s=60)
        assert (code, text) == (0, f"{space}\n")


def test_what_an_image_serves_is_reached_when_its_agent_has_ended(
    client: httpx.Client, image: Path, shared: Daemon
) -> None:
    """Each of the two sandboxes ends when nothing runs in it, and counts while something does."""
    space = make(client, image)
    serve = "(while true; do echo served | nc -l -p 8080; done) > /dev/null 2>&1 & echo begun"
    assert sh(client, space, serve) == (0, "begun\n")
    look = "until busybox grep -q :1F90 /proc/net/tcp /proc/net/tcp6; do :; done"
    assert sh(client, space, look, place="agent", timeout_s=60) == (0, "")
    pid = json.loads((shared.data / "launcher/holders" / f"{space}.json").read_text())["init"]
    end = os.pidfd_open(pid)
    signal.pidfd_send_signal(end, signal.SIGKILL)
    assert select.select([end], [], [], 60)[0]
    os.close(end)
    shown = good(client.get(f"/v1/spaces/{space}/ps"))
    assert [(one["port"], one["program"]) for one in shown["listening"]] == [(8080, "nc")]
    assert not shown["usage"]["pids"] or shown["usage"]["pids"] >= 2
    assert sh(client, space, "true", place="agent") == (0, "")
    shown = good(client.get(f"/v1/spaces/{space}/ports"))
    assert [(one["port"], one["program"]) for one in shown["listening"]] == [(8080, "nc")]
    local = good(client.post(f"/v1/spaces/{space}/ports", json={"port": 8080}))["local"]
    with socket.create_connection(("127.0.0.1", local), 60) as connection:
        assert connection.recv(100) == b"served\n"


def _linked(image: Path, name: str, target: str) -> None:
    path = image / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    path.symlink_to(target)


HOSTILE = {
    "workspace": ("workspace", "{out}"),
    "etc": ("etc/hosts", "{out}/hosts"),
    "up": ("etc/resolv.conf", "../../../../../../../../{out}/resolv"),
    "run": ("run", "{out}"),
    "tmp": ("tmp", "{out}"),
    "dev": ("dev", "{out}"),
    "proc": ("proc", "{out}"),
    "oldroot": ("workspace", "/oldroot{out}"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_links_of_an_image_lead_nowhere(
    kind: str, client: httpx.Client, tmp_path: Path, data: Path
) -> None:
    """Each where something is mounted. What they name on the host is as it was."""
    outside = data / "outside"
    outside.mkdir(mode=0o777)
    outside.chmod(0o777)
    image = busybox_image(tmp_path)
    name, target = HOSTILE[kind]
    _linked(image, name, target.format(out=outside))
    space = make(client, image)
    assert sh(client, space, "echo x > made && cat /etc/hosts > /dev/null && ls /proc")[0] == 0
    assert sh(client, space, "cat made", place="agent") == (0, "x\n")
    assert list(outside.iterdir()) == []


@pytest.mark.skipif(not GIVES, reason="an ordinary user has one id")
def test_set_user_id_programs_of_an_image_give_nothing(
    client: httpx.Client, tmp_path: Path
) -> None:
    image = busybox_image(tmp_path, user="worker")
    os.chmod(image / "bin/busybox", 0o4755)
    space = make(client, image)
    script = "grep -E '^(Cap|NoNew)' /proc/self/status; echo $(id -u)"
    code, text = sh(client, space, f"busybox {script}; echo done")
    assert code == 0 and "NoNewPrivs:\t1" in text, text


def test_an_image_that_is_gone_says_so(
    client: httpx.Client, shared: Daemon, tmp_path: Path
) -> None:
    image = busybox_image(tmp_path)
    (image / "only").write_text(tmp_path.name)
    space = make(client, image)
    shown = good(client.get(f"/v1/spaces/{space}"))["image"]["id"]
    good(client.post(f"/v1/spaces/{space}/stop", json={}))
    (shared.data / "images" / shown).rename(tmp_path / "away")
    problem = client.post(f"/v1/spaces/{space}/start", json={})
    assert problem.json()["code"] == "tree_damaged", problem.text
    assert "image" in problem.json()["detail"] and problem.json()["hint"]
    (tmp_path / "away").rename(shared.data / "images" / shown)
    good(client.post(f"/v1/spaces/{space}/start", json={}))
    assert sh(client, space, "cat /only") == (0, tmp_path.name)


@pytest.mark.parametrize(
    ("image", "code"),
    [("no-such", "image_not_found"), ("/no/such/archive", ""), ("/etc/passwd", "")],
)
def test_what_is_no_image(client: httpx.Client, shared: Daemon, image: str, code: str) -> None:
    before = set((shared.data / "spaces").iterdir())
    problem = client.post("/v1/spaces", json={"image": image, "name": "nothing-made"})
    assert 400 <= problem.status_code < 500, problem.text
    assert problem.json()["code"] == (code or problem.json()["code"])
    assert problem.json()["hint"]
    assert set((shared.data / "spaces").iterdir()) == before
    bad(client.get("/v1/spaces/nothing-made"), 404, "space_not_found")


# The agent's shell


def shell(space: str, script: str) -> dict[str, Any]:
    """What an agent runs: by the shell that is first on its PATH."""
    return {"argv": ["/run/carrel/dev/bash", "-c", script], "place": "agent"}


def test_its_shell_runs_what_it_says_in_the_image(client: httpx.Client, image: Path) -> None:
    space = make(client, image)
    body = {**shell(space, "cat; id -u; echo to-err >&2; exit 9"), "stdin": "given\n"}
    body["env"] = {"ANTHROPIC_API_KEY": "sk-planted", "LC_ALL": "C.UTF-8"}
    done = good(client.post(f"/v1/spaces/{space}/exec", json=body))
    assert (done["stdout"], done["stderr"]) == ("given\n0\n", "to-err\n")
    assert done["run"]["exit"]["code"] == 9
    body = {**shell(space, "env"), "env": body["env"]}
    seen = good(client.post(f"/v1/spaces/{space}/exec", json=body))["stdout"]
    assert "LC_ALL=C.UTF-8" in seen and "planted" not in seen
    body = shell(space, "kill -9 $$")
    ended = good(client.post(f"/v1/spaces/{space}/exec", json=body))["run"]["exit"]
    assert (ended["code"], ended["signal"]) in ((None, 9), (137, None))


def test_its_git_runs_there_too(client: httpx.Client, image: Path) -> None:
    """Beside the agent it would run what the image has put into the tree's configuration."""
    space = make(client, image)
    planted = (
        "echo in-image: $0 $* ; id -u",
        "[core]\n\trepositoryformatversion = 0\n\tfsmonitor = /workspace/evil\n",
    )
    script = (
        "mkdir -p .git/objects .git/refs; echo ref: refs/heads/main > .git/HEAD; touch a;"
        f"printf '{planted[1]}' > .git/config;"
        "printf '#!/bin/sh\\nid -u > /workspace/ran\\n' > evil; chmod +x evil;"
        f"printf '#!/bin/sh\\n{planted[0]}\\n' > /bin/git; chmod +x /bin/git"
    )
    assert sh(client, space, script) == (0, "")

    def git(words: str, env: dict[str, str] | None = None) -> str:
        start = f"PATH=/run/carrel/dev:$PATH exec {words}"
        body = {"argv": ["/bin/sh", "-c", start], "place": "agent", "env": env or {}}
        return str(good(client.post(f"/v1/spaces/{space}/exec", json=body))["stdout"])

    elsewhere = "env -C /home/user git"
    assert git("git status") == "in-image: /bin/git status\n0\n"
    for words in ("-C /workspace status", "--git-dir=/workspace/.git status", "-C ../../workspace"):
        git(f"{elsewhere} {words}")
    git(f"{elsewhere} status", {"GIT_DIR": "/workspace/.git"})
    assert sh(client, space, "test -e ran")[0] == 1
    # What is the agent's own alone is done beside it.
    git(f"{elsewhere} init -q made")
    assert "No commits yet" in git("env -C /home/user/made git status")


PLANTED = """[core]
    repositoryformatversion = 0
    fsmonitor = "touch /tmp/ran;"
[filter "f"]
    clean = touch /tmp/ran; cat
[alias]
    st = "!touch /tmp/ran"
"""


@pytest.mark.parametrize("folder", ["", "sub/folder"])
def test_a_git_of_its_own_takes_the_tree_for_a_strangers(
    client: httpx.Client, image: Path, folder: str
) -> None:
    """One that an agent brings, or starts by its path, is beside its key."""
    space = make(client, image)
    script = (
        f"mkdir -p ./{folder}; cd ./{folder}; mkdir -p .git/objects .git/refs .git/hooks;"
        f"echo ref: refs/heads/main > .git/HEAD; printf '{PLANTED}' > .git/config;"
        "echo '* filter=f' > .gitattributes; touch a;"
        "printf '#!/bin/sh\ntouch /tmp/ran\n' > .git/hooks/pre-commit; chmod +x .git/hooks/*"
    )
    assert sh(client, space, script) == (0, "")
    at = f"/workspace/{folder}"
    for words in ("status", "add a", "commit -m x", "diff", "st", "log", "ls-files -m"):
        for command in (f"env -C {at} /usr/bin/git {words}", f"/usr/bin/git -C {at} {words}"):
            assert sh(client, space, command, place="agent")[0] != 0, command
    assert sh(client, space, "test -e /tmp/ran", place="agent")[0] == 1
    own = "PATH=/run/carrel/dev:$PATH; git init -q made && cd made && git add -A && git status"
    done = sh(client, space, f"cd && {own}", place="agent")
    assert done[0] == 0 and "No commits yet" in done[1]


ON_A_TERMINAL = """
import os, pty, sys
status = pty.spawn(["/run/carrel/dev/bash", "-c", sys.argv[1]])
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_its_shell_has_the_terminal_of_the_agent(client: httpx.Client, image: Path) -> None:
    space = make(client, image)
    script = "test -t 0 && test -t 1 && test -t 2 && echo terminal; read x; echo got $x; exit 5"
    argv = ["python3", "-c", ON_A_TERMINAL, f"test ! -e /usr && {script}"]
    body = {"argv": argv, "place": "agent", "stdin": "typed\n"}
    done = good(client.post(f"/v1/spaces/{space}/exec", json=body))
    assert "terminal\r\n" in done["stdout"] and "got typed\r\n" in done["stdout"], done
    assert done["run"]["exit"]["code"] == 5


def test_its_shell_sends_signals_on(client: httpx.Client, image: Path) -> None:
    space = make(client, image)
    inside = "trap 'echo heard; exit 6' TERM; echo ready > ready; while :; do sleep 0.1; done"
    script = f"""/run/carrel/dev/bash -c "{inside}" & shell=$!
until test -s ready; do sleep 0.1; done; kill -TERM $shell; wait $shell"""
    body = {"argv": ["/bin/sh", "-c", script], "place": "agent"}
    done = good(client.post(f"/v1/spaces/{space}/exec", json=body))
    assert (done["stdout"], done["run"]["exit"]["code"]) == ("heard\n", 6), done


def test_a_killed_daemon_loses_no_command_of_the_shell(image: Path, data: Path) -> None:
    with fresh_daemon() as own:
        client = own.local()
        space = make(client, image)
        script = "mkfifo gate; echo begun > begun; cat gate; echo after; exit 4"
        run = good(client.post(f"/v1/spaces/{space}/runs", json=shell(space, script)))["id"]
        while sh(client, space, "test -s begun")[0]:
            assert good(client.get(f"/v1/runs/{run}"))["state"] == "running"
        own.kill()
        own.start()
        client = own.local()
        assert sh(client, space, "echo go > gate") == (0, "")
        ended = good(client.get(f"/v1/runs/{run}/wait", params={"timeout_s": 60}))
        assert ended["exit"]["code"] == 4, ended


def test_who_hangs_up_ends_its_command(client: httpx.Client, image: Path, shared: Daemon) -> None:
    space = make(client, image)
    with _connected(shared, space) as connection:
        with open(os.devnull, "r+b") as nothing:
            _ask(connection, {"argv": ["sh", "-c", "echo $$ > pid; exec sleep 1000"]}, nothing)
        assert "run" in json.loads(connection.makefile().readline())
        while sh(client, space, "test -s pid")[0]:
            pass
    while sh(client, space, "test -d /proc/$(cat pid)")[0] == 0:
        pass
    until = time.monotonic() + 60
    runs = shared.data / "spaces" / space / "runs"
    while any(path.name.startswith("sh_") for path in runs.iterdir()):
        assert time.monotonic() < until, "its folder stays"
        time.sleep(LOOK_S)


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
        struct.pack("!I", 4) + b"[[[[",
        struct.pack("!I", 2) + b"{}",
        struct.pack("!I", 30) + b'{"attach": "../../../etc/pass"}',
        struct.pack("!I", 19) + b'{"argv": ["sh", 1]}',
    ],
)
def test_nonsense_ends_a_connection_and_nothing_else(
    client: httpx.Client, image: Path, shared: Daemon, packet: bytes
) -> None:
    space = make(client, image)
    with _connected(shared, space) as connection:
        connection.sendall(packet)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.makefile().read()
    assert not answer or "message" in json.loads(answer)
    assert sh(client, space, "echo fine") == (0, "fine\n")
    assert "Traceback" not in shared.log()


def test_only_shells_come_that_way(client: httpx.Client, image: Path, shared: Daemon) -> None:
    space = make(client, image)
    with _connected(shared, space) as connection, open(os.devnull, "r+b") as nothing:
        _ask(connection, {"argv": ["ls"]}, nothing)
        assert "shells" in json.loads(connection.makefile().readline())["message"]


def test_only_commands_of_its_shell_are_taken_up_and_ended(
    client: httpx.Client, image: Path, shared: Daemon
) -> None:
    """Neither those of another space, nor what somebody has run in this one, nor what is kept of
    it."""
    space, other = make(client, image), make(client, image)
    body = {"argv": ["sh", "-c", "mkfifo gate; cat gate"]}
    theirs = good(client.post(f"/v1/spaces/{other}/runs", json=body))["id"]
    with _connected(shared, other) as connection, open(os.devnull, "r+b") as nothing:
        _ask(connection, {"argv": ["sh", "-c", "exec sleep 1000"]}, nothing)
        running = json.loads(connection.makefile().readline())["run"]
        done = good(client.post(f"/v1/spaces/{space}/exec", json={"argv": ["echo", "kept"]}))
        ended = done["run"]["id"]
        for run in (theirs, running, ended):
            with _connected(shared, space) as hostile:
                body = {"attach": run}
                hostile.sendall(struct.pack("!I", len(json.dumps(body))))
                hostile.sendall(json.dumps(body).encode())
                assert "no run" in json.loads(hostile.makefile().readline())["message"]
        assert good(client.get(f"/v1/runs/{theirs}"))["state"] == "running"
        assert client.get(f"/v1/runs/{ended}/output").text == "kept\n"
        with _connected(shared, other) as again:
            body = {"attach": running}
            again.sendall(struct.pack("!I", len(json.dumps(body))) + json.dumps(body).encode())
            assert json.loads(again.makefile().readline()) == {"run": running}


def test_who_hangs_up_at_once_leaves_nothing_and_no_word(
    client: httpx.Client, image: Path, shared: Daemon
) -> None:
    """As often as an agent likes: the daemon's log is for other things."""
    space = make(client, image)
    with open(os.devnull, "r+b") as nothing:
        for _ in range(10):
            with _connected(shared, space) as connection:
                _ask(connection, {"argv": ["sh", "-c", "exec sleep 1000"]}, nothing)
        with _connected(shared, space) as connection:
            _ask(connection, {"argv": ["sh", "-c", "exit 3"]}, nothing)
            said = [json.loads(line) for line in connection.makefile()]
    assert said[-1]["code"] == 3
    until = time.monotonic() + 60
    while any((shared.data / "spaces" / space / "runs").glob("sh_*")):
        assert time.monotonic() < until
        time.sleep(LOOK_S)
    assert "Traceback" not in (shared.data / "daemon" / "log").read_text()


LINGERS_S = 45
LINGERING = """
import signal, socket, struct, sys
server = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(server.getsockname())
far = server.accept()[0]
near.setblocking(False)
try:
    while True:
        near.send(bytes(65536))
except BlockingIOError:
    pass
near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, int(sys.argv[2])))
hub = socket.socket(socket.AF_UNIX)
hub.connect(sys.argv[1])
socket.send_fds(hub, [b"[[[[\\n"], [near.fileno()] * 3)
near.close()
try:
    hub.recv(100)
except ConnectionResetError:
    pass
print("heard", flush=True)
signal.pause()
"""


@pytest.mark.parametrize("name", [HUB_SOCKET, SHELL_SOCKET])
def test_a_connection_that_nobody_reads_keeps_nobody_waiting(
    client: httpx.Client, image: Path, name: str
) -> None:
    """Sent to the daemon, which is the last to close it."""
    space = make(client, image)
    argv = ["python3", "-I", "-c", LINGERING, f"/run/carrel/{name}", str(LINGERS_S)]
    body = {"argv": argv, "place": "agent"}
    run = good(client.post(f"/v1/spaces/{space}/runs", json=body))["id"]
    began = time.monotonic()
    while not client.get(f"/v1/runs/{run}/output").content:
        assert good(client.get(f"/v1/runs/{run}"))["state"] == "running"
    assert time.monotonic() - began < LINGERS_S
    good(client.post(f"/v1/runs/{run}/signal", json={"signal": "KILL"}))


def _connected(daemon: Daemon, space: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(60)
    connection.connect(str(daemon.data / "spaces" / space / "hub" / SHELL_SOCKET))
    return connection


def _ask(connection: socket.socket, asked: dict[str, Any], stream: Any) -> None:
    body = json.dumps({"env": {}, "cwd": ".", **asked}).encode()
    streams = [stream.fileno()] * 3
    socket.send_fds(connection, [struct.pack("!I", len(body))], streams)
    connection.sendall(body)


def test_nothing_stays_held_after_a_restart_of_the_launcher(
    client: httpx.Client, image: Path, shared: Daemon
) -> None:
    """A launcher that is killed takes an ordinary user's mounts along: they come again."""
    space = make(client, image)
    assert sh(client, space, "echo x > /kept") == (0, "")
    assert sh(client, space, "true", place="agent") == (0, "")
    launcher = Launcher(shared.data)
    pid = launcher.call("hello", {}, [])[0]["pid"]
    launcher.close()
    end = os.pidfd_open(pid)
    signal.pidfd_send_signal(end, signal.SIGKILL)
    assert select.select([end], [], [], 60)[0]
    os.close(end)
    # Neither is in the network, or in the mounts, that went.
    serve = "(echo served | nc -l -p 80) > /dev/null 2>&1 & echo begun"
    assert sh(client, space, serve) == (0, "begun\n")
    ask = "until busybox nc 127.0.0.1 80 </dev/null 2>/dev/null; do :; done; echo x > there"
    assert sh(client, space, ask, place="agent", timeout_s=60) == (0, "served\n")
    assert sh(client, space, "cat /kept there") == (0, "x\nx\n")
