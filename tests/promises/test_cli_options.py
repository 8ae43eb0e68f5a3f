"""docs/cli.md: options of spaces, commands, images, servers, requests and races, by the program
alone."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from carrel.environments.engines.own import PODMAN, OwnEngine, containers_conf
from carrel.environments.engines.place import EnginePlace
from tests.busybox import busybox_image
from tests.cli.program import TIMEOUT_S, Program, in_terminal
from tests.daemon.rig import LOOK_S, fresh_daemon
from tests.environments.engines.rig import FROM
from tests.environments.engines.rig import project as with_dockerfile
from tests.instances.small import command, put_small
from tests.trees.images.layouts import file, layer, oci

GIT = ("git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org")
CALL = {"jsonrpc": "2.0", "id": 2, "method": "tools/call"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "promise", "version": "1"},
    },
}


def committed(project: Path) -> None:
    for words in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-qm", "first")):
        subprocess.run([*GIT, *words], cwd=project, check=True)


# Making spaces


def test_where_spaces_come_from(carrel: Program) -> None:
    project = carrel.cwd / "greet"
    archive = carrel.cwd / "greet.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(project / "greet.py", "greet.py")
    committed(project)
    subprocess.run([*GIT, "tag", "v1"], cwd=project, check=True)
    (project / "later.txt").write_text("x")
    for words, files in (
        (("./greet.tar.gz",), "greet.py\n"),
        ((f"file://{project}",), "greet.py\n"),
        (("./greet", "--ref", "v1"), "greet.py\n"),
        (("./greet",), "greet.py\nlater.txt\n"),
        (("--empty",), ""),
    ):
        name = carrel.good("new", *words).strip()
        assert carrel.good("exec", name, "--", "ls") == files, words
        carrel.good("rm", name)
    carrel.cwd = project
    name = carrel.good("new").strip()
    assert carrel.json("show", name)["project"]["location"] == str(project)
    carrel.good("rm", name)


def test_a_repository_elsewhere_is_followed_when_asked(carrel: Program) -> None:
    committed(carrel.cwd / "greet")
    subprocess.run(
        [*GIT, "clone", "-q", "--shared", "./greet", "borrowed"], cwd=carrel.cwd, check=True
    )
    log = ("--", "git", "log", "--format=%s")
    plain = carrel("new", "./borrowed")
    assert plain.code == 0 and "--follow-git" in plain.err
    assert carrel("exec", plain.out.strip(), *log).code != 0
    whole = carrel.good("new", "./borrowed", "--follow-git").strip()
    assert carrel.good("exec", whole, *log) == "first\n"
    carrel.good("rm", "--force", plain.out.strip(), whole)


def test_what_a_project_has_run_and_is_given(carrel: Program) -> None:
    home = carrel.cwd / "home"
    home.mkdir()
    (carrel.cwd / "greet" / "carrel.toml").write_text('[setup]\nrun = "echo done > ready"\n')
    own = carrel.good("new", "./greet").strip()
    assert carrel.good("exec", own, "--", "cat", "ready") == "done\n"
    none = carrel.good("new", "./greet", "--no-setup").strip()
    assert carrel("exec", none, "--", "cat", "ready").code == 1
    (carrel.cwd / "greet" / "carrel.toml").unlink()
    about = {"image": "x", "postCreateCommand": "echo asked > ready"}
    (carrel.cwd / "greet" / ".devcontainer.json").write_text(json.dumps(about))
    asked = carrel.good("new", "./greet", "--image", "none", "--setup").strip()
    assert carrel.good("exec", asked, "--", "cat", "ready") == "asked\n"
    assert carrel.json("show", asked)["setup"] == ["echo asked > ready"]
    carrel.good("rm", "--force", own, none, asked)


def test_credentials_of_package_managers_are_given_when_asked(carrel: Program) -> None:
    npmrc = Path.home() / ".npmrc"
    npmrc.write_text("//npm.example.com/:_authToken=planted\n")
    try:
        plain = carrel.good("new", "--empty").strip()
        whole = carrel.good("new", "--empty", "--with-credentials").strip()
        look = ("--", "sh", "-c", "cat ~/.npmrc 2>/dev/null || true")
        assert "planted" not in carrel.good("exec", plain, *look)
        assert "planted" in carrel.good("exec", whole, *look)
        assert "planted" not in carrel.good("show", whole, "--json")
        carrel.good("rm", "--force", plain, whole)
    finally:
        npmrc.unlink()


def test_a_limit_is_enforced_or_refused(carrel: Program) -> None:
    """Where a limit cannot be kept, `new` says so, and with --strict makes nothing."""
    words = ("new", "--empty", "--cpus", "1", "--memory", "512M")
    plain, strict = carrel(*words), carrel(*words, "--strict")
    assert plain.code == 0
    kept = all(one["enforced"] for one in carrel.json("show", plain.out.strip())["enforced"])
    assert strict.code == (0 if kept else 7), strict
    assert ("not enforced" in plain.err) is not kept
    carrel.good("rm", "--force", *plain.out.split(), *strict.out.split())


def test_a_first_task_and_its_options(carrel: Program) -> None:
    (carrel.cwd / "rules.md").write_text("be brief\n")
    task = "run cat /agent/context/* ; echo $MODE\nsay done"
    more = ("--session", "mine", "--permission", "sandboxed", "--answer", "1s", "--timeout", "1m")
    given = ("--attach", "rules.md", "--turn-env", "MODE=fast", "--trust", "--full")
    words = ("new", "./greet", "--agent", "scripted", "-m", task, "--wait", "--color", "always")
    done = carrel(*words, *more, *given, "--env", "DEEP=1")
    assert done.code == 0 and done.out.splitlines()[1:] == ["done"], done
    assert "be brief" in done.err and "fast" in done.err and "\x1b[" in done.err
    name = done.out.split()[0]
    (turn,) = carrel.json("turns", name)["turns"]
    assert (turn["session"], turn["permission"]) == ("mine", "sandboxed")
    assert carrel.good("exec", name, "--", "sh", "-c", "echo $DEEP$MODE") == "1\n"
    late = carrel("send", name, "sleep 60", "--wait", "--timeout", "300ms", "--color", "never")
    assert late.code == 1 and "\x1b[" not in late.err
    carrel.good("rm", "--force", name)
    # What nobody permits in time is denied.
    asking = ("--permission", "ask", "--answer", "100ms", "-m", "write a.txt 1", "--wait")
    name = carrel("new", "--empty", "--agent", "scripted", *asking).out.split()[0]
    assert carrel("exec", name, "--", "cat", "a.txt").code == 1
    carrel.good("rm", "--force", name)


def test_an_agent_has_the_servers_that_it_was_given(carrel: Program) -> None:
    put_small(carrel.cwd / "greet")
    lines = ("--transport", "stdio", "--", *command("streams"))
    carrel.good("instance", "add", "cli-given", *lines)
    try:
        name = carrel.good("new", "./greet", "--agent", "scripted", "--mcp", "cli-given").strip()
        assert [one["name"] for one in carrel.json("show", name)["mcp"]] == ["cli-given"]
        assert carrel("new", "--empty", "--agent", "scripted", "--mcp", "nobody").code == 3
        carrel.good("rm", "--force", name)
    finally:
        carrel.good("instance", "remove", "cli-given")


def test_restarted_and_changed(carrel: Program, desk: str) -> None:
    run = carrel.good("exec", "-d", desk, "--", "sh", "-c", "trap '' TERM; sleep 600").strip()
    carrel.good("restart", desk, "--grace", "100ms")
    assert carrel("run", "wait", run).code == 137
    carrel.good("update", desk, "--keep", "2h")
    assert carrel.json("show", desk)["retention"]["keep_s"] == 7200
    assert carrel("restart", "nobody").code == 3
    assert carrel("update", desk, "--keep", "soon").code == 2


# Commands


def test_shells_and_what_they_are_given(carrel: Program, desk: str) -> None:
    words = ("shell", desk, "-e", "X=1")
    assert carrel.good(*words, stdin=b"echo $X; cd /tmp; pwd\n") == "1\n/tmp\n"


def test_output_that_comes_and_output_that_was(carrel: Program, desk: str) -> None:
    script = "echo one; read x; printf 'two \\033[31mred\\033[0m\\007\\n'"
    held = carrel.start("exec", "-i", desk, "--", "sh", "-c", script, stdin=-1, stdout=-1)
    assert held.stdout is not None and held.stdout.readline() == b"one\n"
    run = carrel.json("runs", desk)["runs"][0]["id"]
    with (
        carrel.start("logs", "-f", desk, stdout=-1) as whole,
        carrel.start("run", "attach", "--new", run, stdout=-1) as new,
    ):
        assert whole.stdout is not None and whole.stdout.readline() == b"one\n"
        # It has begun when it is there.
        held.communicate(b"go\n", TIMEOUT_S)
        assert whole.stdout.read() == b"two \x1b[31mred\x1b[0m\x07\n"
        assert whole.wait(TIMEOUT_S) == 0
        assert new.stdout is not None and b"one" not in new.stdout.read()
        assert new.wait(TIMEOUT_S) == 0
    assert carrel("logs", "--raw", run).bytes.endswith(b"two \x1b[31mred\x1b[0m\x07\n")


def test_bytes_that_are_missing_are_told(carrel: Program, desk: str) -> None:
    """The newest 16 MiB of each stream are kept."""
    run = carrel.good("exec", "-d", desk, "--", "sh", "-c", "head -c 20M /dev/zero").strip()
    assert carrel("run", "wait", run).code == 0
    told = carrel("logs", desk)
    assert len(told.bytes) < 20 << 20 and "missing" in told.err
    found = carrel.json("logs", desk)
    assert found["stdout_missing_bytes"] + len(told.bytes) == 20 << 20
    assert found["stderr_missing_bytes"] == 0
    attached = carrel("run", "attach", run)
    assert attached.code == 125 and "missing" in attached.err


def test_every_byte_to_a_slow_reader(carrel: Program, desk: str) -> None:
    words = ("exec", desk, "--", "sh", "-c", "seq 300000; seq 300000 >&2")
    with carrel.start(*words, stdout=-1, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        total = 0
        while piece := process.stdout.read(1 << 16):
            total += len(piece)
        assert process.wait(TIMEOUT_S) == 0
    assert total == 2 * sum(len(f"{number}\n") for number in range(1, 300001))


def test_transcripts_of_turns(carrel: Program) -> None:
    name = carrel.good("new", "--empty", "--agent", "scripted").strip()
    script = "run seq 60\nsay told"
    turn = json.loads(carrel.good("send", name, script, "--wait", "--json").splitlines()[-1])["id"]
    for verb in (("logs", "--run", turn, name), ("turn", "show", turn)):
        short = carrel.good(*verb)
        assert "told" in short and "\n  59" not in short.replace("    ", "  ")
    full = carrel.good("turn", "show", turn, "--full")
    assert "59" in full and "59" in carrel.good("logs", turn, "--full")
    assert "\x1b[" in carrel.good("logs", turn, "--color", "always")
    raw = carrel.good("logs", turn, "--raw")
    assert raw != full and json.loads(raw.splitlines()[0])
    carrel.good("rm", "--force", name)


def test_a_terminal_by_ssh(carrel: Program, desk: str) -> None:
    with in_terminal(carrel, "ssh", desk, "-t", "--", "test -t 0 && echo it is one") as terminal:
        terminal.until(b"it is one")
        assert terminal.end() == 0
    with in_terminal(carrel, "ssh", desk, "--", "test -t 0 || exit 4") as terminal:
        assert terminal.end() == 4
    # Its own shell is what `ssh-proxy` speaks to, which nobody calls by hand.
    assert carrel("ssh-proxy", "nobody.carrel").code != 0
    agent = carrel("ssh", desk, "--agent", "--", "id -un")
    assert (agent.code, agent.out) == (0, "user\n"), agent


# Images


def test_an_image_is_built_pulled_and_picked(carrel: Program) -> None:
    if not OwnEngine(PODMAN, EnginePlace(carrel.cwd / "engine")).probe().available:
        pytest.skip("podman does not work here")
    other_file = {"other/Dockerfile": FROM + "ENV SAID=other\n"}
    box = with_dockerfile(carrel.cwd / "box", "", other_file)
    plain = ("image", "build", str(box), "--engine", "podman", "--build-network", "none")
    (box / "Dockerfile").write_text(
        FROM.replace("FROM scratch", "FROM scratch AS first")
        + "ARG WORD=none\nENV SAID=$WORD\nFROM first\nENV LAST=1\n"
    )
    words = ("--target", "first", "--build-arg", "WORD=word", "--name", "cli-built")
    built = carrel.good(*plain, *words).strip()
    assert carrel.json("image", "show", "cli-built")["id"] == built
    assert "SAID=word" in carrel.good("image", "show", built)
    assert "LAST=1" not in carrel.good("image", "show", built)
    other = carrel.good("image", "build", "./box", "--dockerfile", "other/Dockerfile").strip()
    assert "SAID=other" in carrel.good("image", "show", other)
    folder = carrel.cwd / "box" / "dev"
    folder.mkdir()
    about = {"build": {"dockerfile": "../other/Dockerfile", "context": ".."}}
    (folder / "devcontainer.json").write_text(json.dumps(about))
    by = carrel.good("image", "build", "./box", "--devcontainer", "dev").strip()
    assert by == other, "the same content is built once"
    assert carrel("image", "build", "./box", "--by-devcontainer").code != 0, "it has none"
    # Spaces by the same words.
    for more in (("--dockerfile", "other/Dockerfile"), ("--devcontainer", "dev")):
        name = carrel.good("new", "./box", *more).strip()
        assert carrel.good("exec", name, "--", "sh", "-c", "echo $SAID") == "other\n"
        carrel.good("rm", name)
        assert "other" in carrel.good("inspect", "./box", *more)
    assert carrel("new", "./box", "--by-devcontainer").code != 0
    # No engine has it, and no registry is asked.
    assert carrel("image", "pull", "cli-nowhere:1", "--local").code != 0
    carrel.good("image", "rm", "cli-built", other)


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's podman has no store here")
def test_an_image_is_taken_from_an_engine(tmp_path: Path) -> None:
    """That a person has pulled already; no registry is asked, unless it is to be `--anew`."""
    if not OwnEngine(PODMAN, EnginePlace(tmp_path / "engine")).probe().available:
        pytest.skip("podman does not work here")
    (tmp_path / "containers.conf").write_text(containers_conf())
    store = f'graphroot = "{tmp_path}/own"\nrunroot = "{tmp_path}/run"\n'
    (tmp_path / "storage.conf").write_text(f'[storage]\ndriver = "overlay"\n{store}')
    with_dockerfile(tmp_path / "box", FROM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_CONF", str(tmp_path / "containers.conf"))
        patch.setenv("CONTAINERS_STORAGE_CONF", str(tmp_path / "storage.conf"))
        line = ["podman", "import", str(tmp_path / "box" / "rootfs.tar"), "localhost:1/own:1"]
        subprocess.run(line, check=True, capture_output=True, timeout=TIMEOUT_S)
        with fresh_daemon(listen=None) as daemon:
            carrel = Program(daemon.data, tmp_path)
            words = ("image", "pull", "localhost:1/own:1", "--engine", "podman")
            image = carrel.good(*words, "--name", "mine").strip()
            assert carrel.json("image", "show", "mine")["id"] == image
            assert carrel.good(*words, "--local").strip() == image
            assert carrel(*words, "--anew").code == 1, "there is no registry"


def test_images_of_archives(carrel: Program) -> None:
    (carrel.cwd / "one.tar").write_bytes(oci(layer(file("etc/one"))))
    one = carrel.good("image", "import", "cli-one", "one.tar").strip()
    wrong = carrel("image", "import", "x", "one.tar", "--reference", "other:2")
    assert wrong.code != 0 and "other:2" in wrong.err
    box = carrel.good("image", "import", "cli-box", str(busybox_image(carrel.cwd))).strip()
    name = carrel.good("new", "./greet", "--image", "cli-box").strip()
    carrel.good("exec", name, "--", "sh", "-c", "echo more > /etc/more; echo x > mine")
    system = carrel.good("changes", name, "--system")
    assert system == "A /etc/more\n"
    assert "more" not in carrel.good("changes", name)
    assert carrel.good("shell", name, "--in", "agent", stdin=b"id -un\n") == "user\n"
    said = json.loads(carrel.good("inspect", "./greet", "--image", "cli-box", "--json"))
    assert "cli-box" in json.dumps(said)
    dry = carrel.good("image", "prune", "--budget", "1", "--dry-run")
    assert one in dry and box not in dry, "a space has it"
    carrel.good("image", "prune", "--budget", "1")
    assert carrel("image", "show", one).code == 3
    carrel.good("rm", "--force", name)
    compose = {"services": {"cli-db": {"image": "cli-box"}}}
    (carrel.cwd / "greet" / "compose.yaml").write_text(json.dumps(compose))
    assert "cli-db" in carrel.good("inspect", "./greet", "--services", "auto")
    assert "cli-db" not in carrel.good("inspect", "./greet", "--services", "none")
    (carrel.cwd / "greet" / ".devcontainer.json").write_text('{"image": "cli-box"}')
    assert carrel.json("inspect", "./greet")["plan"]["kind"] == "image", "as it would be made"
    carrel.good("image", "rm", "cli-box")
    assert carrel.json("inspect", "./greet")["plan"]["kind"] == "host"


# Servers


def call(told: dict[str, Any], tool: str, **arguments: Any) -> str:
    body = {**CALL, "params": {"name": tool, "arguments": arguments}}
    headers = {"Authorization": f"Bearer {told['token']}"} if told["token"] else {}
    answer = httpx.post(told["url"], json=body, headers=headers, timeout=TIMEOUT_S)
    return str(answer.json()["result"]["content"][0]["text"])


def test_instances_and_their_options(carrel: Program, desk: str) -> None:
    put_small(carrel.cwd / "greet")
    carrel.good("instance", "add", "cli-opts", "--", *command("http"))
    start = ("instance", "start", "cli-opts")
    ids = []
    try:
        times = ("--ttl", "1h", "--idle", "10m", "--lease", "5m", "--memory", "512M")
        more = ("--survive", "--restart", "--network", "none", "-e", "A=b")
        made = carrel.json(*start, "./greet", *times, *more, "--tool-ready", 'echo={"x": 1}')
        ids.append(made["instance_id"])
        assert (made["ttl"], made["idle_timeout"], made["lease"]) == (3600, 600, 300)
        assert made["limits"]["memory_bytes"] == 512 << 20 and made["network"] == "none"
        assert made["restart"] == "on-failure" and made["survive"]
        assert json.loads(call(made, "echo", y=2)) == {"y": 2}
        assert len(carrel.good("instance", "logs", ids[0], "--limit", "1").splitlines()) == 1
        one = carrel.json(*start, "./greet", "--share")
        two = carrel.json(*start, "./greet", "--share")
        ids.append(one["instance_id"])
        assert one["instance_id"] == two["instance_id"] and one["hold"] != two["hold"]
        carrel.good("instance", "stop", ids[1], "--hold", one["hold"])
        assert carrel.json("instance", "show", ids[1])["state"] == "ready"
        carrel.good("instance", "stop", ids[1], "--hold", two["hold"])
        assert carrel.json("instance", "show", ids[1])["state"] == "ended"
        put_small(carrel.cwd)
        carrel.good("cp", "small.py", f"{desk}:small.py")
        inside = carrel.json(*start, "--space", desk)
        ids.append(inside["instance_id"])
        listed = carrel.json("instance", "ls", "--space", desk)["instances"]
        assert [each["instance_id"] for each in listed] == [inside["instance_id"]]
        loud = carrel("instance", "start", "cli-opts", "./greet", "--unconfined", "--json")
        assert loud.code == 0 and "Nothing confines" in loud.err
        ids.append(json.loads(loud.out)["instance_id"])
    finally:
        for name in ids:
            carrel("instance", "stop", name)
        carrel.good("instance", "remove", "cli-opts")
    assert ids[0] not in carrel.good("instance", "ls")
    assert ids[0] in carrel.good("instance", "ls", "--all")


def test_servers_of_ones_own(carrel: Program) -> None:
    words = ("--transport", "sse", "--port-by", "log", "--port-line", r"at (\d+)", "--path", "/s")
    more = ("--network", "open", "--warm", "1", "-e", "A=b")
    carrel.good("instance", "add", "cli-own", *words, *more, "--", *command("http"))
    try:
        known = {one["name"]: one for one in carrel.json("instance", "servers")["servers"]}
        own = known["cli-own"]
        assert own["port"] == {"by": "log", "line": r"at (\d+)"} and own["transport"] == "sse"
        assert (own["path"], own["warm"], own["env"]) == ("/s", 1, ["A"])
        assert own["network"] == "open"
    finally:
        carrel.good("instance", "remove", "cli-own")
    # What its sandbox shows, how long it may take, and when it counts as ready.
    shown = carrel.cwd / "shown"
    shown.mkdir()
    (shown / "file").write_text("from outside")
    put_small(carrel.cwd / "greet")
    start = ("instance", "start", "cli-own", "./greet")
    bound = ("--bind", str(shown), "--tool-ready", f'read={{"path": "{shown}/file"}}')
    try:
        carrel.good("instance", "add", "cli-own", *bound, "--", *command("http"))
        made = carrel.json(*start)
        assert call(made, "read", path=str(shown / "file")) == "from outside"
        carrel.good("instance", "stop", made["instance_id"])
        carrel.good("instance", "remove", "cli-own")
        # One in the project is there with it.
        within = carrel.cwd / "greet" / "within"
        within.mkdir()
        carrel.good("instance", "add", "cli-own", "--bind", str(within), "--", *command("http"))
        carrel.good("instance", "stop", carrel.json(*start)["instance_id"])
        carrel.good("instance", "remove", "cli-own")
        carrel.good("instance", "add", "cli-own", "--timeout", "300ms", "--", *command("never"))
        assert "0.3 s" in carrel.bad(1, *start)
    finally:
        carrel.good("instance", "remove", "cli-own")
    # One that speaks only on its streams is offered over HTTP, with a token.
    put_small(carrel.cwd / "greet")
    wrapped = ("--transport", "stdio", "--wrap", "stdio", "--", *command("streams"))
    carrel.good("instance", "add", "cli-wrapped", *wrapped)
    try:
        made = carrel.json("instance", "start", "cli-wrapped", "./greet")
        headers = {"Authorization": f"Bearer {made['token']}"}
        headers["Accept"] = "application/json, text/event-stream"
        greeted = httpx.post(made["url"], json=INITIALIZE, headers=headers, timeout=TIMEOUT_S)
        assert greeted.status_code == 200 and '"small"' in greeted.text
        bare = httpx.post(made["url"], json=INITIALIZE, timeout=TIMEOUT_S)
        assert bare.status_code == 401
        carrel.good("instance", "stop", made["instance_id"])
    finally:
        carrel.good("instance", "remove", "cli-wrapped")


@pytest.mark.parametrize("format", ["claude", "codex", "vscode", "cursor", "zed", "json"])
def test_instances_for_as_long_as_a_command(carrel: Program, format: str) -> None:
    """With what `start` takes; a pipe's end ends them."""
    put_small(carrel.cwd / "greet")
    name = f"cli-run-{format}"
    carrel.good("instance", "add", name, "--", *command("http"))
    try:
        options = ("--memory", "512M", "--network", "none", "-e", "A=b", "--restart")
        ready = ("--share", "--tool-ready", "echo")
        words = ("instance", "run", name, "./greet", "--format", format)
        printed = carrel.good(*words, *options, *ready)
        assert "http://127.0.0.1:" in printed
        assert name in printed if format != "json" else json.loads(printed)["server"] == name
        assert name not in carrel.good("instance", "ls")
    finally:
        carrel.good("instance", "remove", name)


def test_servers_in_a_space_by_a_command(carrel: Program, desk: str) -> None:
    put_small(carrel.cwd)
    carrel.good("cp", "small.py", f"{desk}:small.py")
    lines = ("--transport", "stdio", "--", *command("streams"))
    carrel.good("instance", "add", "cli-in-space", *lines)
    asked = json.dumps(INITIALIZE).encode() + b"\n"
    try:
        words = ("instance", "connect", "cli-in-space")
        for options in (
            ("--space", desk, "-e", "A=b"),
            (".", "--memory", "512M", "--network", "none"),
        ):
            done = carrel(*words, *options, stdin=asked)
            assert json.loads(done.out.splitlines()[0])["result"]["serverInfo"]["name"] == "small"
        # It has the space's limits and network.
        assert carrel(*words, "--space", desk, "--memory", "512M").code == 2
        bare = carrel("instance", "connect", "cli-in-space", ".", "--unconfined", stdin=asked)
        assert json.loads(bare.out.splitlines()[0])["result"] and "Nothing confines" in bare.err
        for more in (("--space", desk), ("--unconfined",)):
            assert "127.0.0.1" in carrel.good("instance", "run", "cli-in-space", *more)
    finally:
        carrel.good("instance", "remove", "cli-in-space")


# Requests


def requested(carrel: Program, *words: str) -> dict[str, Any]:
    done = carrel("request", "--agent", "scripted", *words, "--json")
    assert done.code in (0, 1), done
    return dict(json.loads(done.out))


def test_what_a_request_is_given(carrel: Program) -> None:
    (carrel.cwd / "notes.md").write_text("a note\n")
    task = "run cat greet.py > a.txt; echo $MODE >> a.txt"
    about = ("--architecture", "two layers", "--context", "@notes.md", "--timeout", "1m")
    more = ("--tier", "minimal", "--network", "none", "-e", "MODE=fast", "--model", "scripted")
    kept = ("--permission", "sandboxed", "--keep", "1h", "--request-id", "cli-given")
    found = requested(carrel, task, "--project", "./greet", *about, *more, *kept)
    assert found["complete"], found
    printed = carrel.good("request", "fetch", "cli-given", "a.txt")
    assert printed == "print('Hello')\nfast\n"
    space = carrel.json("show", found["space_id"])
    assert (space["tier"], space["network"]) == ("minimal", "none")
    (turn,) = carrel.json("turns", found["space_id"])["turns"]
    assert turn["permission"] == "sandboxed" and "two layers" in turn["prompt"]
    listed = carrel.good("request", "ls", "--limit", "1").splitlines()
    assert len(listed) == 2
    owner = carrel.json("request", "show", "cli-given")["owner"]
    assert "cli-given" in carrel.good("request", "ls", "-q", "--owner", owner)
    assert "cli-given" not in carrel.good("request", "ls", "-q", "--owner", "label:no=body")
    carrel.good("request", "fetch", "cli-given", "--out", "fetched")
    assert sorted(os.listdir(carrel.cwd / "fetched")) == ["a.txt"]
    carrel.good("request", "fetch", "cli-given", "--out", "whole", "--all")
    assert sorted(os.listdir(carrel.cwd / "whole")) == ["a.txt", "greet.py"]
    carrel.good("request", "fetch", "cli-given", "--archive", "it.tar.gz")
    with tarfile.open(carrel.cwd / "it.tar.gz") as archive:
        assert archive.getnames() == ["a.txt"]
    assert carrel("request", "fetch", "cli-given", "--out", "fetched").code == 4
    carrel.good("request", "fetch", "cli-given", "--out", "fetched", "--force", "--done")
    carrel.good("request", "rm", "cli-given")
    assert carrel("request", task, "--mcp", "nobody", "--agent", "scripted").code == 3


def test_nothing_of_ones_own_is_replaced_unless_forced(carrel: Program) -> None:
    (carrel.cwd / "out").mkdir()
    (carrel.cwd / "out" / "a.txt").write_text("mine\n")
    (carrel.cwd / "out" / "b.txt").write_text("stays\n")
    words = ("request", "--agent", "scripted", "write a.txt theirs\nwrite c.txt x", "--out", "out")
    assert carrel(*words).code == 4
    assert sorted(os.listdir(carrel.cwd / "out")) == ["a.txt", "b.txt"]
    carrel.good(*words, "--force")
    found = {one: (carrel.cwd / "out" / one).read_text() for one in os.listdir(carrel.cwd / "out")}
    assert found == {"a.txt": "theirs\n", "b.txt": "stays\n", "c.txt": "x\n"}


@pytest.mark.parametrize(("older", "left"), [("drop", "gone"), ("archive", "archived")])
def test_versions_of_a_series(carrel: Program, older: str, left: str) -> None:
    series = f"cli-{older}"
    for number in ("1", "2", "3"):
        words = ("--series", series, "--newest", "2", "--older", older)
        requested(carrel, f"write v.txt {number}", *words)
    # An older one goes a moment after the newest one is there.
    until = time.monotonic() + TIMEOUT_S
    wanted = [(3, "there"), (2, "there"), (1, left)]
    while True:
        found = carrel.json("request", "versions", series)["versions"]
        if [(one["version"], one["workspace"]) for one in found] == wanted:
            break
        assert time.monotonic() < until, found
        time.sleep(LOOK_S)
    between = carrel.good("request", "diff", series, "--from", "2", "--to", "3")
    assert "-2\n+3\n" in between
    carrel.good("request", "rm", *(one["request_id"] for one in found))


@contextlib.contextmanager
def asking(carrel: Program, *words: str) -> Iterator[list[str]]:
    """The command with which a request whose agent asks says how it is answered, as it is printed;
    afterwards, it has ended."""
    line = ("request", "--agent", "scripted", "--keep", "1h", *words)
    with carrel.start(*line, stdout=-1, stderr=-1) as process:
        assert process.stderr is not None
        told = next(one for one in process.stderr if b"carrel request answer" in one)
        said = shlex.split(told.decode().partition("carrel ")[2])
        yield said[: said.index("--id") + 2]
        process.communicate(timeout=TIMEOUT_S)


def test_a_request_says_how_it_is_answered(carrel: Program) -> None:
    ask = {"question": "Which colour?", "choices": ["red", "blue"]}
    task = f"tool ask_user {json.dumps(ask)}\nwrite a.txt 1"
    with asking(carrel, "--request-id", "cli-asks", task) as how:
        assert how[:3] == ["request", "answer", "cli-asks"] and how[3] == "--id"
        carrel.good("request", "answer", "cli-asks", "blue", "--id", how[4])
    assert carrel.json("request", "show", "cli-asks")["state"] == "done"
    (turn,) = carrel.json("turns", carrel.json("request", "show", "cli-asks")["space_id"])["turns"]
    assert "blue" in carrel.good("turn", "show", turn["id"], "--full")
    carrel.good("request", "rm", "cli-asks")
    assert carrel("request", "answer", "nobody", "x").code == 3


@pytest.mark.parametrize(("answer", "there"), [("--allow", True), ("--deny", False)])
def test_what_a_request_may_do_is_answered(carrel: Program, answer: str, there: bool) -> None:
    name = f"cli-permit{answer}"
    with asking(carrel, "--request-id", name, "--permission", "ask", "write a.txt 1"):
        carrel.good("request", "answer", name, answer)
    files = [one["path"] for one in carrel.json("request", "files", name)["files"]]
    assert files == (["a.txt"] if there else [])
    carrel.good("request", "rm", name)


# Races


def test_a_race_and_its_options(carrel: Program) -> None:
    committed(carrel.cwd / "greet")
    (carrel.cwd / "greet" / "later").write_text("x")
    task = "run test ! -e later && echo $MODE > r.txt"
    words = ("race", "./greet", "-m", task, "--agents", "scripted", "--ref", "main")
    more = (
        "--network",
        "none",
        "-e",
        "MODE=fast",
        "--tier",
        "minimal",
        "--permission",
        "sandboxed",
    )
    checked = ("--check", "grep fast r.txt", "--check-timeout", "1m", "--timeout", "1m")
    named = ("--permission", "sandboxed", "--name", "opts")
    done = carrel(*words, *more, *checked, *named, "--json")
    assert done.code == 0, done
    told = json.loads(done.out)
    (racer,) = told["racers"]
    assert (racer["check"], racer["outcome"]) == ("passed", "complete")
    space = carrel.json("show", racer["name"])
    assert (space["network"], space["tier"]) == ("none", "minimal")
    assert carrel.json("race", "--show", told["id"], "--wait")["ended"]
    late = carrel("race", "-m", "sleep 60", "--agents", "scripted", "--timeout", "200ms", "--json")
    assert late.code == 1
    assert json.loads(late.out)["racers"][0]["outcome"] != "complete"
    assert carrel("race", "-m", task, "--agents", "scripted", "--mcp", "nobody").code == 3
    carrel.good("rm", "--force", racer["name"], json.loads(late.out)["racers"][0]["name"])
