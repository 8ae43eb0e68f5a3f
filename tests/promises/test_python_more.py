"""docs/client.md, the rest of it: where a client goes, what it has of the daemon, and streams."""

from __future__ import annotations

import inspect
import json
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import carrel
from carrel.client.spaces import Space
from tests.busybox import busybox_image
from tests.daemon.rig import ANSWER_S, Daemon, fresh_daemon
from tests.instances.small import command, put_small

pytestmark = pytest.mark.xdist_group("python")

PAGE = Path(__file__).parents[2] / "docs" / "client.md"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with fresh_daemon() as found:
        yield found


@pytest.fixture
def client(daemon: Daemon) -> Iterator[carrel.Client]:
    with carrel.Client(data=daemon.data, autostart=False) as found:
        yield found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for one in (tmp_path, put_small(tmp_path)):
        one.chmod(0o755)
    (tmp_path / "greet.py").write_text("print('Hello')\n")
    return tmp_path


@pytest.fixture
def space(client: carrel.Client, project: Path) -> Iterator[Space]:
    with client.space(project) as found:
        yield found


def test_where_a_client_goes(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = daemon.token("label:team=py")
    url = f"http://{daemon.address}"
    given = [{"socket": daemon.socket}, {"url": url, "token": secret}, {"data": daemon.data}]
    for one in given:
        with carrel.Client(**one, timeout_s=60, autostart=False) as client:  # type: ignore[arg-type]
            assert client.info().version
    monkeypatch.setenv("CARREL_DATA", str(daemon.data))
    monkeypatch.setenv("CARREL_NO_START", "1")
    with carrel.Client() as client:
        own = client.create(None)
        own.remove()
    monkeypatch.setenv("CARREL_URL", url)
    monkeypatch.setenv("CARREL_TOKEN", "nobodys")
    with carrel.Client() as client, pytest.raises(carrel.errors.AuthenticationFailed):
        [*client.spaces()]
    monkeypatch.setenv("CARREL_TOKEN", secret)
    with carrel.Client() as client, client.space(None) as mine:
        assert mine.info.labels == {"team": "py"} and mine.info.path == ""


def test_it_is_not_started_when_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CARREL_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("CARREL_NO_START", "1")
    with carrel.Client() as client, pytest.raises(carrel.errors.DaemonUnavailable):
        client.info()
    assert not (tmp_path / "none" / "daemon").exists()


def test_what_a_space_is_asked_for(client: carrel.Client, project: Path) -> None:
    steps: list[tuple[str, int]] = []
    space = client.create(
        project,
        name="try-2",
        network="none",
        limits=carrel.Limits(memory_bytes=512 << 20, pids=200),
        labels={"team": "blue"},
        env={"CI": "1"},
        retention=carrel.Retention(ttl_s=3600),
        on_progress=lambda step: steps.append((step.stage, step.done)),
    )
    info = space.info
    assert steps and (info.state, info.network, info.labels["team"]) == ("ready", "none", "blue")
    assert info.limits.pids == 200 and info.retention.ttl_s == 3600 and info.confined
    space.update(name="try-3", labels={"team": "red"}, retention=carrel.Retention(ttl_s=60))
    again = client.get("try-3")
    assert again.refresh().retention.ttl_s == 60 and again.info.labels == {"team": "red"}
    assert space.usage().disk_bytes is not None and space.verify().holds
    assert space.id in [one.space.id for one in client.ps()]
    assert not space.ps().runs and space.diff_files().total == 0
    space.remove()


def test_projects_of_every_kind(client: carrel.Client, tmp_path: Path) -> None:
    repository = tmp_path / "repo"
    repository.mkdir()
    (repository / "a.txt").write_text("one\n")
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-qb", "main"], ["add", "."], ["commit", "-qm", "1"], ["tag", "old"]):
        subprocess.run([*git, *words], check=True)
    (repository / "a.txt").write_text("two\n")
    subprocess.run(
        ["tar", "-C", str(repository), "-cf", str(tmp_path / "a.tar"), "a.txt"], check=True
    )
    for place, more, text in (
        (repository, {}, b"two\n"),
        (repository, {"ref": "old"}, b"one\n"),
        (f"file://{repository}", {}, b"one\n"),
        (tmp_path / "a.tar", {}, b"two\n"),
    ):
        with client.space(place, **more) as space:  # type: ignore[arg-type]
            assert space.files.read("a.txt") == text, place
    with client.space(None) as empty:
        assert [one.name for one in empty.files.list(".")] == []


def test_a_run_as_a_stream(daemon: Daemon, client: carrel.Client, space: Space) -> None:
    """Input, its end, and a signal, of a command that somebody else has started."""
    argv = ["sh", "-c", "trap 'exit 9' INT; cat; echo ended; while :; do sleep 0.05; done"]
    with daemon.websocket(f"/v1/spaces/{space.id}/exec") as starting:
        starting.send(json.dumps({"argv": argv, "stdin": True}))
        started = json.loads(starting.recv(ANSWER_S))["run"]["id"]
    run = client.run(started)
    heard = bytearray()
    with run.attach() as stream:
        stream.exchange.input(b"typed\n")
        stream.exchange.close_input()
        for piece in stream:
            heard += piece.data
            if b"ended" in heard:
                stream.exchange.signal("INT")
    assert heard == b"typed\nended\n"
    ended = run.wait().exit
    assert ended is not None and ended.code == 9


def test_output_that_is_not_kept(space: Space) -> None:
    run = space.start_run(["head", "-c", str(40 << 20), "/dev/zero"])
    run.wait()
    with pytest.raises(carrel.OutputLost) as lost:
        run.read()
    assert lost.value.missing + len(lost.value.data) == 40 << 20
    assert len(lost.value.data) >= 16 << 20
    pieces = [*run.output()]
    assert sum(one.dropped for one in pieces) == lost.value.missing


def test_ports(space: Space) -> None:
    run = space.start_run(["python3", "-m", "http.server", "8321", "--bind", "127.0.0.1"])
    for _ in range(400):
        if space.ports().listening:
            break
        space.run(["sleep", "0.05"])
    assert [one.port for one in space.ports().listening] == [8321]
    forward = space.forward(8321)
    with socket.create_connection(("127.0.0.1", forward.local), timeout=ANSWER_S) as connection:
        connection.sendall(b"GET /greet.py HTTP/1.0\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.0 200")
    space.stop_forward(8321)
    assert not space.ports().forwards
    run.signal("KILL")


def test_a_server_for_one_client(client: carrel.Client, project: Path, space: Space) -> None:
    client.instances.add_server("tiny", command("http"))
    assert "tiny" in [one.name for one in client.instances.servers()]
    with client.instances.start("tiny", project=project, ttl=3600) as server:
        assert server.url and "Authorization" in {*server.headers}
        assert server.id in [one.instance_id for one in client.instances.list()]
        assert client.instances.get(server.id).info.state == "ready"
        server.heartbeat()
        assert isinstance(server.logs(), str)
    assert server.id not in [one.instance_id for one in client.instances.list()]
    inside = client.instances.start("tiny", space=space.id)
    assert inside.info.space_id == space.id
    assert inside.release() == "terminated" and inside.release() == "already_gone"
    client.instances.remove_server("tiny")


def test_requests_that_nobody_waits_for(client: carrel.Client, tmp_path: Path) -> None:
    asked = {"frontend": "scripted", "retention": {"series": "shop/py"}}
    for price in (1, 2):
        made = client.requests.submit(f"write cart.py PRICE = {price}", **asked)  # type: ignore[arg-type]
        follow = client.requests.follow(made.request_id)
        assert [frame.type for frame in follow][-1] == "result" and follow.result().complete
    listed = [*client.requests.list()]
    assert listed[0].request_id == made.request_id
    assert client.requests.get(made.request_id).state == "done"
    assert [one.path for one in client.requests.files(made.request_id)] == ["cart.py"]
    assert [one.version for one in client.requests.versions("shop/py")] == [2, 1]
    assert "+PRICE = 2" in client.requests.diff("shop/py")
    follow.archive(tmp_path / "made.tar.gz")
    assert (tmp_path / "made.tar.gz").stat().st_size
    client.requests.remove(made.request_id)


def test_bases_and_images(client: carrel.Client, project: Path, tmp_path: Path) -> None:
    base = client.make_base(project)
    assert base.id in [one.id for one in client.bases()]
    with client.space(None, base=base.id) as space:
        assert space.files.read("greet.py")
    image = client.images.take("py:1", busybox_image(tmp_path))
    assert image.config.env == () and image.size_bytes
    assert client.images.get("py:1").id == image.id
    assert image.id in [one.id for one in client.images.list()]
    with client.space(None, image="py:1") as space:
        assert space.run(["ls", "/bin/busybox"]).ok
        assert [*space.changes(system=True)] == []
    client.images.remove("py:1")
    client.images.prune()
    assert image.id not in [one.id for one in client.images.list()]
    assert client.df().total_bytes


def test_both_clients_have_what_the_page_names() -> None:
    """`AsyncClient` has the same methods, awaited."""
    named = {*re.findall(r"`client\.(\w+)\(", PAGE.read_text())}
    assert len(named) > 10
    for name in named:
        assert callable(getattr(carrel.Client, name))
        assert callable(getattr(carrel.AsyncClient, name))
    assert inspect.iscoroutinefunction(carrel.AsyncClient.info)
