"""docs/settings.md, row by row: what each setting says, and what a daemon does that has it."""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

import carrel as library
from tests.busybox import busybox_image
from tests.cli.program import TIMEOUT_S, Program, in_terminal
from tests.daemon.requesting import daemon_with
from tests.daemon.rig import ANSWER_S, LOOK_S, Daemon, bad, daemon_in, good
from tests.instances.small import command, put_small
from tests.promises.test_hub import Line

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"
ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \| ([^|]*) \| (.*) \|$", re.M)
FIRST, *PARTS = re.split(r"^## ", PAGE.read_text(), flags=re.M)
SETTINGS = ROW.findall(FIRST)
WRONG = {
    "path": '"relative"',
    "number": '"soon"',
    "whole number": "1.5",
    "text": "7",
    "true or false": '"perhaps"',
    "table": "7",
    "list of texts": "7",
    "list of paths": "7",
}


@pytest.fixture
def carrel(tmp_path: Path) -> Program:
    program = Program(tmp_path / "data", tmp_path)
    program.env["CARREL_CONFIG"] = str(tmp_path / "own.toml")
    (tmp_path / "own.toml").write_text("# Mine.\n")
    return program


# What the page says, and what the program does


def test_the_page_has_every_setting(carrel: Program) -> None:
    names = [one["name"] for one in carrel.json("config")["settings"]]
    assert names == [row[0] for row in SETTINGS] and len(names) > 40


@pytest.mark.parametrize(("name", "type", "default", "meaning"), SETTINGS)
def test_what_a_setting_says(
    carrel: Program, name: str, type: str, default: str, meaning: str
) -> None:
    said = carrel.json("config", "explain", name)
    assert said["type"] == type and said["sentence"].replace("\n", " ") == meaning
    assert f"`{said['default']}`" == default or not default
    if default:
        assert carrel.good("config", "get", name).strip() == default.strip("`")
    # What does not fit is refused, and changes nothing.
    file = carrel.cwd / "own.toml"
    if type not in ("text", "path", "list of texts", "list of paths"):
        carrel.bad(2, "config", "set", name, "relative")
        assert file.read_text() == "# Mine.\n"
    wrong = WRONG.get(type, '"perhaps"')
    file.write_text(f"# Mine.\n{name} = {wrong}\n")
    del carrel.env["CARREL_DATA"]
    refused = carrel("config", "get", name)
    assert refused.code == 2 and name in refused.err, refused


@pytest.mark.parametrize("text", ["no_such_key = 1\n", 'idle_s = "soon"\n', "idle_s = \n"])
def test_a_daemon_starts_with_nothing_that_is_wrong(carrel: Program, text: str) -> None:
    (carrel.cwd / "own.toml").write_text(text)
    refused = carrel("up")
    assert refused.code != 0 and "settings" in refused.err
    assert carrel("status").code == 6


def test_which_file_it_is(carrel: Program) -> None:
    home, xdg = carrel.cwd / "home", carrel.cwd / "xdg"
    del carrel.env["CARREL_CONFIG"]
    carrel.env["HOME"] = str(home)
    found = carrel.good("config", "path").strip()
    assert found in (f"{home}/.config/carrel/config.toml", "/etc/carrel/config.toml")
    env = {"XDG_CONFIG_HOME": str(xdg)}
    if not found.startswith("/etc"):
        assert carrel("config", "path", env=env).out.strip() == f"{xdg}/carrel/config.toml"
    named = {"CARREL_CONFIG": str(carrel.cwd / "named.toml")}
    assert carrel("config", "path", env=named).out.strip() == named["CARREL_CONFIG"]
    # CARREL_DATA comes before `data` in the file.
    (carrel.cwd / "named.toml").write_text('data = "/elsewhere"\n')
    shown = json.loads(carrel("config", "--json", env=named).out)["settings"]
    assert shown[0]["value"] == str(carrel.data) and shown[0]["from"] == "environment"
    del carrel.env["CARREL_DATA"]
    assert carrel("config", "get", "data", env=named).out.strip() == '"/elsewhere"'


def test_a_setting_is_changed(carrel: Program) -> None:
    (carrel.cwd / "own.toml").write_text("# Mine.\nkeep_s = 5 # five\n")
    carrel.good("config", "set", "idle_s", "3600")
    carrel.good("config", "set", "keep_s", "6")
    text = (carrel.cwd / "own.toml").read_text()
    assert "# Mine.\nkeep_s = 6 # five\n" in text and "idle_s = 3600" in text


# What a daemon does


def until(holds: Callable[[], Any]) -> Any:
    end = time.monotonic() + ANSWER_S
    while not (found := holds()):
        assert time.monotonic() < end
        time.sleep(LOOK_S)
    return found


@contextlib.contextmanager
def receiver() -> Iterator[tuple[str, list[Any]]]:
    heard: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", heard
        finally:
            server.shutdown()
            thread.join(TIMEOUT_S)


@contextlib.contextmanager
def talking(daemon: Daemon, sync: str = "disk") -> Iterator[Line]:
    """A client of the hub; how it keeps messages is what the setting says."""
    hub = Line(daemon)
    try:
        assert hub.data("client_register", {"kind": "app"})["sync"] == sync
        yield hub
    finally:
        hub.close()


@contextlib.contextmanager
def daemon_of(text: str) -> Iterator[Daemon]:
    """With just that as its settings; SHOWN is a folder beside its data."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        folder.chmod(0o711)
        (folder / "shown").mkdir()
        (folder / "shown" / "file").write_text("from outside")
        (folder / "config.toml").write_text(text.replace("SHOWN", f"{folder}/shown"))
        patch.setenv("CARREL_CONFIG", str(folder / "config.toml"))
        with daemon_in(folder / "own", listen=None) as found:
            yield found


TIGHT: Mapping[str, object] = {
    "trash_bytes": 100_000,
    "checkpoints": 2,
    "bases_bytes": 1,
    "images_bytes": 1,
    "space_disk": "64M",
    "spaces_per_caller": 1,
    "output_bytes": 1000,
    "durable": True,
    "hub_sync": "process",
    "hub_messages": 3,
    "hub_bytes": 30_000,
    "hub_clients_in_space": 1,
    "hub_questions": 1,
    "hub_rate": 50,
    "restart_s": 0.05,
    "instances_max": 2,
    "instances_per_caller": 1,
    "instance_memory_bytes": 512 << 20,
    "requests_at_once": 1,
    "requests_waiting": 1,
    "request_tier": "minimal",
    "request_s": 2,
    "request_given_up_s": 0.2,
    "allowed_hosts": ["desk.example"],
    "allowed_origins": ["https://app.example"],
}


@pytest.fixture(scope="module")
def webhook() -> Iterator[tuple[str, list[Any]]]:
    with receiver() as found:
        yield found


@pytest.fixture(scope="module")
def daemon(webhook: tuple[str, list[Any]]) -> Iterator[Daemon]:
    roots = {"project_roots": ["/usr/share"]}
    with daemon_with({**TIGHT, **roots, "webhook": webhook[0]}) as found:
        yield found


@pytest.fixture
def tight(daemon: Daemon, tmp_path: Path) -> Program:
    return Program(daemon.data, tmp_path)


@pytest.fixture
def desk(tight: Program) -> Iterator[str]:
    name = tight.good("new", "--empty", "--agent", "scripted").strip()
    yield name
    tight("rm", "--force", name)


def test_what_is_kept_of_removed_spaces(tight: Program) -> None:
    for name in ("small-trash", "large-trash"):
        tight.good("new", "--empty", "--name", name)
        size = "10k" if name.startswith("small") else "400k"
        tight.good("exec", name, "--", "sh", "-c", f"head -c {size} /dev/urandom > f")
        tight.good("rm", "--force", name)
    tight.good("gc")
    left = [one["space"]["name"] for one in tight.json("undelete")["trash"]]
    assert "small-trash" in left and "large-trash" not in left


def test_checkpoints_that_are_kept(tight: Program, desk: str) -> None:
    for number in "123":
        tight.good("exec", desk, "--", "sh", "-c", f"echo {number} > f")
        tight.good("checkpoint", desk, "-m", number)
    kept = [one["message"] for one in tight.json("checkpoints", desk)["checkpoints"]]
    assert kept == ["3", "2"]


def test_bases_and_images_that_nothing_uses(tight: Program) -> None:
    (tight.cwd / "project").mkdir()
    (tight.cwd / "project" / "f").write_text("x" * 10_000)
    name = tight.good("new", "./project").strip()
    base = tight.json("show", name)["base"]
    image = tight.good("image", "import", "one", str(busybox_image(tight.cwd))).strip()
    tight.good("gc")
    assert base in json.dumps(tight.json("df")), "it is used"
    tight.good("rm", name)
    tight.good("gc")
    assert base not in json.dumps(tight.json("df")["parts"])
    assert image not in tight.good("image", "ls")


def test_the_room_of_a_space(tight: Program, desk: str) -> None:
    assert 64 << 20 <= tight.json("show", desk)["default_disk_bytes"] < 70 << 20


def test_what_one_caller_may_have(daemon: Daemon, tight: Program) -> None:
    put_small(tight.cwd)
    tight.good("instance", "add", "few", "--", *command("http"))
    with daemon.tcp(daemon.token("label:team=few")) as blue:
        first = good(blue.post("/v1/spaces", json={}))["id"]
        assert blue.post("/v1/spaces", json={}).json()["code"] == "too_many_spaces"
        # Not of the owner's own.
        names = [tight.good("new", "--empty").strip() for _ in "12"]
        blue.delete(f"/v1/spaces/{first}", params={"force": "true"})
        tight.good("rm", *names)
    one = tight.json("instance", "start", "few", ".")
    assert one["limits"]["memory_bytes"] == 512 << 20
    refused = tight("instance", "start", "few", ".", "--json")
    assert json.loads(refused.err)["code"] == "too_many_instances"
    tight.good("instance", "stop", one["instance_id"])
    tight.good("instance", "remove", "few")


def test_output_that_is_kept(tight: Program, desk: str) -> None:
    run = tight.good("exec", "-d", desk, "--", "seq", "1000000").strip()
    assert tight("run", "wait", run).code == 0
    told = tight("logs", run)
    assert 1000 <= len(told.bytes) <= 1000 + (1 << 20), "up to 1 MiB more"
    assert told.out.endswith("\n1000000\n") and "missing" in told.err


def test_messages_that_are_kept(daemon: Daemon, tight: Program, desk: str) -> None:
    space = tight.json("show", desk)["id"]
    with talking(daemon, "process") as hub:
        for number in range(40):
            hub.data("buffer_custom_n", {"n": number, "text": "x" * 1000}, space=space)
    dumped = map(json.loads, tight.good("hub", "dump", "--space", desk).splitlines())
    kept = [one["payload"]["n"] for one in dumped if one["type"] == "buffer_custom_n"]
    # Three, and what came since it was last looked at: the bytes alone would allow more.
    assert kept[-1] == 39 and len(kept) < 29


def test_clients_and_questions_of_one_space(daemon: Daemon, tight: Program, desk: str) -> None:
    ask = 'carrel hub send buffer_user_question \'{"question": "Which?"}\''
    assert tight("exec", desk, "--", "sh", "-c", ask).code == 0
    assert tight("exec", desk, "--", "sh", "-c", ask).code != 0, "one may wait"
    words = ("exec", desk, "--", "carrel", "hub", "follow", "--from", "0", "--json")
    with tight.start(*words, stdout=subprocess.PIPE) as follower:
        try:
            assert follower.stdout is not None and follower.stdout.readline()
            assert tight("exec", desk, "--", "carrel", "log", "more").code != 0, "one may be there"
        finally:
            follower.kill()


def test_how_fast_one_may_send(daemon: Daemon, tight: Program, desk: str) -> None:
    space = tight.json("show", desk)["id"]
    with talking(daemon, "process") as hub:
        for number in range(200):
            hub.say("custom_n", {"n": number}, space=space, id=f"n{number}")
        codes = set()
        for _ in range(200):
            told = hub.next()
            codes.add(told["payload"].get("code", "") if told["type"] == "error" else "")
            if codes - {""}:
                break
    assert "rate_limited" in codes, codes


def test_an_agent_that_failed_starts_again(tight: Program, desk: str) -> None:
    turn = tight.good("attach", desk, "-d", "-m", "crash").strip()
    until(lambda: tight.json("run", "show", turn)["exit"] is not None)
    log = tight.good("hub", "dump", "--space", desk)
    assert "starts again in 0.1 s" in log and "starts again in 0.8 s" in log


def test_a_webhook_hears_questions(
    tight: Program, desk: str, webhook: tuple[str, list[Any]]
) -> None:
    ask = 'carrel hub send buffer_user_question \'{"question": "Which colour?"}\''
    tight.good("exec", desk, "--", "sh", "-c", ask)
    until(lambda: "Which colour?" in json.dumps(webhook[1]))


def test_requests_and_their_bounds(daemon: Daemon, tight: Program) -> None:
    slow = ("request", "--agent", "scripted", "--detach", "--keep", "1h", "--request-id")
    tight.good(*slow, "set-1", "run until [ -e go ]; do sleep 0.05; done")
    until(lambda: tight.json("request", "show", "set-1")["run_id"])
    tight.good(*slow, "set-2", "write a.txt 1")
    refused = tight(*slow, "set-3", "write a.txt 1")
    assert refused.code != 0 and "wait" in refused.err
    assert not tight.json("request", "show", "set-2")["run_id"], "one at once"
    space = tight.json("request", "show", "set-1")["space_id"]
    assert tight.json("show", space)["tier"] == "minimal"
    # Its agent may take two seconds.
    tight("run", "wait", tight.json("request", "show", "set-1")["run_id"])
    until(lambda: tight.json("request", "show", "set-1")["failure"])
    assert tight.json("request", "show", "set-1")["failure"]["code"] == "timeout"
    until(lambda: tight.json("request", "show", "set-2")["state"] == "done")
    assert tight.json("request", "show", "set-2")["frontend"] == "scripted"
    tight.good("request", "rm", "set-1", "set-2")


def test_a_request_is_given_up_without_its_client(daemon: Daemon, tight: Program) -> None:
    with daemon.websocket("/v1/requests") as socket:
        asked = {"type": "generate", "instructions": "sleep 600", "request_id": "set-gone"}
        socket.send(json.dumps(asked))
        socket.recv(ANSWER_S)
    until(lambda: tight.json("request", "show", "set-gone")["ended_at"])


def test_what_a_label_may_take_and_reach(daemon: Daemon) -> None:
    with daemon.tcp(daemon.token("label:team=roots")) as blue:
        inside = {"kind": "folder", "location": "/usr/share/doc"}
        outside = {"kind": "folder", "location": "/usr/lib"}
        assert blue.post("/v1/spaces", json={"project": outside}).status_code in (403, 404)
        told = blue.post("/v1/spaces", json={"project": {**inside, "location": "/usr/share/man"}})
        assert told.is_success or told.json()["code"] not in ("forbidden", "project_not_found")
        if told.is_success:
            blue.delete(f"/v1/spaces/{told.json()['id']}", params={"force": "true"})
        clone = {"kind": "git", "location": "https://127.0.0.1:9/x.git"}
        refused = blue.post("/v1/spaces", json={"project": clone})
        assert not refused.is_success and "clone_hosts" in refused.text, refused.text
        hook = {"instructions": "say hi", "webhook": "http://127.0.0.1:9/"}
        bad(blue.post("/v1/requests", json=hook), 403, "forbidden")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "desk.example"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Origin": "https://app.example"}, 200),
        ({"Origin": "https://evil.example"}, 403),
    ],
)
def test_by_which_names_it_is_called(daemon: Daemon, headers: dict[str, str], status: int) -> None:
    with daemon.tcp(daemon.token("admin")) as client:
        assert client.get("/v1/spaces", headers=headers).status_code == status


# Another daemon, for what would be in the way of the others

OTHER = """
idle_s = 0.5
keep_s = 0.5
trash_s = 0.1
checkpoint_bytes = 1000000
bases_s = 0.1
hub_seconds = 0.1
hub_bytes = 5000
hub_clients = 2
instances_max = 1
instances_starting = 1
request_webhook_hosts = ["127.0.0.1"]
desktop = false
listen = "127.0.0.1:0"
tcp_connections = 8

[sandbox]
home_tools = false
package_settings = false
image = "none"
caches_bytes = 0
show = ["SHOWN"]

[agents.mine]
command = ["/bin/true"]
provider = "openai"
credentials = {openai = "MY_KEY"}
binds = ["/opt"]
network = false
env = {MINE = "1"}
"""


@pytest.fixture(scope="module")
def other() -> Iterator[Daemon]:
    with daemon_of(OTHER) as found:
        yield found


def test_what_goes_by_itself(other: Daemon, tmp_path: Path) -> None:
    """Stopped when idle, removed after that, its changes kept for a moment, its base for one."""
    carrel = Program(other.data, tmp_path)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "f").write_text("x")
    name = carrel.good(
        "new", "./project", "--idle", "1h", "--keep", "1h", "--name", "stays"
    ).strip()
    carrel.good("new", "./project", "--name", "passing")
    base = carrel.json("show", name)["base"]

    def gone() -> bool:
        carrel.good("gc")
        return "passing" not in carrel.good("ls")

    until(gone)
    assert carrel.json("show", "stays")["state"] == "ready"
    # One with changes that were not copied out stays.
    carrel.good("new", "--empty", "--name", "changed")
    carrel.good("exec", "changed", "--", "touch", "f")
    until(lambda: carrel.good("gc") or carrel.json("show", "changed")["state"] == "stopped")
    carrel.good("gc")
    assert carrel.json("show", "changed")["state"] == "stopped"
    carrel.good("rm", "--force", "changed")
    until(lambda: carrel.good("gc") is not None and not carrel.json("undelete")["trash"])
    carrel.good("rm", "stays")
    until(lambda: carrel.good("gc") is not None and base not in json.dumps(carrel.json("df")))


def test_what_checkpoints_may_take(other: Daemon, tmp_path: Path) -> None:
    carrel = Program(other.data, tmp_path)
    name = carrel.good("new", "--empty", "--idle", "1h").strip()
    for number in "123":
        carrel.good("exec", name, "--", "sh", "-c", "head -c 600k /dev/urandom > f")
        carrel.good("checkpoint", name, "-m", number)
    kept = [one["message"] for one in carrel.json("checkpoints", name)["checkpoints"]]
    assert kept == ["3"], "the newest stays"
    carrel.good("rm", "--force", name)


def test_how_long_messages_are_kept(other: Daemon, tmp_path: Path) -> None:
    carrel = Program(other.data, tmp_path)
    name = carrel.good("new", "--empty", "--idle", "1h").strip()
    space = carrel.json("show", name)["id"]
    with talking(other) as hub:
        for number in range(10):
            hub.data("buffer_custom_n", {"n": number, "text": "x" * 1000}, space=space)
            time.sleep(LOOK_S)
        # As many as the owner's own may be, and no more.
        with contextlib.ExitStack() as more:
            refused = ""
            for _ in range(8):
                try:
                    more.enter_context(talking(other))
                except (EOFError, AssertionError, OSError) as error:
                    refused = repr(error)
                    break
            assert refused
    kept = [
        json.loads(one)["payload"]["n"]
        for one in carrel.good("hub", "dump", "--space", name).splitlines()
        if "buffer_custom_n" in one
    ]
    assert kept[-1] == 9 and len(kept) < 10
    carrel.good("rm", "--force", name)


def test_what_spaces_see_of_the_machine(other: Daemon, tmp_path: Path) -> None:
    carrel = Program(other.data, tmp_path)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "Dockerfile").write_text("FROM scratch\n")
    name = carrel.good("new", "./project", "--idle", "1h").strip()
    shown = carrel.json("show", name)
    assert shown["tools"] == [] and shown["packages"] == [] and shown["downloads"] == ""
    place = other.data.parent.parent / "shown"
    assert shown["image"] is None and str(place) in json.dumps(shown["shown"])
    assert carrel.good("exec", name, "--", "cat", f"{place}/file") == "from outside"
    carrel.good("rm", "--force", name)


def test_agents_of_ones_own(other: Daemon, tmp_path: Path) -> None:
    carrel = Program(other.data, tmp_path)
    found = {one["name"]: one for one in carrel.json("agents")["frontends"]}
    assert found["mine"]["provider"] == "openai" and found["mine"]["credentials"] == ["openai"]
    assert not found["mine"]["needs_network"] and found["mine"]["kind"] == "acp"


def test_one_instance_at_a_time(other: Daemon, tmp_path: Path) -> None:
    carrel = Program(other.data, tmp_path)
    put_small(tmp_path)
    carrel.good("instance", "add", "ok", "--", *command("http"))
    carrel.good("instance", "add", "slow", "--timeout", "1s", "--", *command("never"))
    with carrel.start("instance", "start", "slow", ".", stderr=subprocess.PIPE) as slow:
        until(lambda: carrel.json("instance", "ls")["instances"])
        refused = carrel("instance", "start", "ok", ".", "--json")
        assert json.loads(refused.err)["code"] == "too_many_instances"
        slow.communicate(timeout=TIMEOUT_S)
    made = carrel.json("instance", "start", "ok", ".")
    carrel.good("instance", "stop", made["instance_id"])


def test_connections_by_tcp(other: Daemon, tmp_path: Path) -> None:
    carrel = Program(other.data, tmp_path)
    address = carrel.json("status")["address"]
    assert address.startswith("127.0.0.1:")
    secret = carrel.json("token", "create", "--label", "team=hooks")["secret"]
    with httpx.Client(base_url=f"http://{address}", timeout=ANSWER_S) as blue:
        blue.headers["Authorization"] = f"Bearer {secret}"
        asked = {"instructions": "say hi", "webhook": "http://127.0.0.1:9/", "frontend": "scripted"}
        assert blue.post("/v1/requests", json=asked).is_success, "a host that was named"
    token = carrel.json("token", "create")["secret"]
    headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
    with contextlib.ExitStack() as held:
        statuses = []
        for _ in range(4):
            try:
                client = held.enter_context(httpx.Client(timeout=2.0))
                stream = client.stream("GET", f"http://{address}/v1/events", headers=headers)
                statuses.append(held.enter_context(stream).status_code)
            except httpx.TransportError:
                statuses.append(0)
        assert statuses.count(200) == 2, "a quarter of eight for one token"


def test_the_prefix_of_terminals(tight: Program, desk: str) -> None:
    tight.env["CARREL_CONFIG"] = str(tight.cwd / "own.toml")
    (tight.cwd / "own.toml").write_text('attach_prefix = "M-x"\n')
    with in_terminal(tight, "attach", desk) as terminal:
        terminal.until(b"Alt-x d detaches")
        terminal.type(b"\x1bxd")
        assert terminal.end() == 0
    tight.good("interrupt", desk, "--kill")


# Servers


def test_servers_of_the_settings(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    put_small(project)
    (project / "copied").write_text("a part")
    (tmp_path / "shown").write_text("from outside")
    script = command("http")
    text = f"""
[servers.own]
command = {json.dumps(script)}
transport = "streamable-http"
port_by = "process"
path = "/mcp"
stdio = {json.dumps(command("streams"))}
env = {{MINE = "1"}}
ready_s = 30
network = "none"
binds = ["{tmp_path}/shown"]
files = {{"notes.txt" = "from {{project}}"}}
copies = {{"copied" = "copy.txt"}}
warm = 0
install = "install it so"

[servers.own.tool_ready]
name = "read"
arguments = {{path = "{tmp_path}/shown"}}

[servers.missing]
command = ["/nowhere/at-all"]
transport = "stdio"
install = "install it so"
"""
    with daemon_of(text) as daemon, library.Client(data=daemon.data, autostart=False) as client:
        carrel = Program(daemon.data, tmp_path)
        found = {one["name"]: one for one in carrel.json("instance", "servers")["servers"]}
        own = found["own"]
        assert own["installed"] and own["path"] == "/mcp" and own["network"] == "none"
        assert own["env"] == ["MINE"] and own["transport"] == "streamable-http" and own["streams"]
        assert own["port"]["by"] == "process" and own["source"] == "settings"
        assert not found["missing"]["installed"] and found["missing"]["install"] == "install it so"
        made = carrel.json("instance", "start", "own", "./project")
        assert made["state"] == "ready" and client is not None
        carrel.good("instance", "stop", made["instance_id"])
        assert "install it so" in carrel.bad(7, "instance", "start", "missing", ".")
