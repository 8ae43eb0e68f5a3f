"""Starting, finding and ending the daemon, from outside."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from carrel.daemon import control, places
from carrel.domain.errors import DaemonRunning, DaemonUnavailable
from carrel.linux.processes import is_alive, start_time
from tests.daemon.rig import ANY_PORT, Daemon, good
from tests.daemon.sessions import Session

SOON_S = 60.0
"""For a process to start or end on a busy machine."""


def _ended(pid: int, started: int | None) -> None:
    """Waits until a process that we know is gone."""
    descriptor = os.pidfd_open(pid) if is_alive(pid, started or 0) else -1
    if descriptor >= 0:
        assert select.select([descriptor], [], [], SOON_S)[0]
        os.close(descriptor)


def test_a_daemon_comes_and_goes(stopped: Daemon) -> None:
    assert control.status(stopped.data) == control.Status(False)
    assert control.stop(stopped.data) is None
    pid = stopped.start().pid
    status = control.status(stopped.data)
    assert status.running and status.pid == pid and status.address.startswith("127.0.0.1:")
    with stopped.local() as client:
        assert good(client.get("/v1/info"))["pid"] == pid
    assert control.stop(stopped.data) == pid
    assert control.status(stopped.data) == control.Status(False)
    for path in (places.socket(stopped.data), places.address(stopped.data)):
        assert not os.path.exists(path)
    assert "ended" in stopped.log()


def test_it_belongs_to_nobody(started: Daemon) -> None:
    """Neither to the session nor to the terminal nor to the folder of who started it."""
    with open(f"/proc/{started.pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    assert int(fields[1]) != os.getpid() and int(fields[3]) != os.getsid(0)
    assert int(fields[4]) == 0
    assert os.readlink(f"/proc/{started.pid}/cwd") == "/"
    names = [os.readlink(f"/proc/{started.pid}/fd/{number}") for number in (0, 1, 2)]
    assert names == ["/dev/null", places.log(started.data), places.log(started.data)]


def test_it_keeps_nothing_of_its_caller(stopped: Daemon) -> None:
    """A pipe that is kept open keeps whoever reads it waiting."""
    ours, theirs = os.pipe()
    os.set_inheritable(theirs, True)
    try:
        stopped.start()
        os.close(theirs)
        theirs = -1
        os.set_blocking(ours, False)
        assert os.read(ours, 1) == b""
    finally:
        os.close(ours)
        if theirs >= 0:
            os.close(theirs)


def test_there_is_one_per_data_folder(daemon: Daemon) -> None:
    with pytest.raises(DaemonRunning) as caught:
        control.start(daemon.data)
    assert str(daemon.pid) in caught.value.message and caught.value.details["pid"] == daemon.pid
    ran = subprocess.run(
        [sys.executable, "-m", "carrel.daemon", "--data", daemon.data],
        capture_output=True,
        text=True,
        timeout=SOON_S,
        check=False,
    )
    assert ran.returncode == 1 and str(daemon.pid) in ran.stderr
    assert "Traceback" not in ran.stderr
    with daemon.local() as client:
        good(client.get("/v1/health"))


def test_many_start_it_at_once_and_one_does(stopped: Daemon) -> None:
    pids: list[int] = []
    running: list[int] = []

    def start() -> None:
        try:
            pids.append(control.start(stopped.data, ANY_PORT))
        except DaemonRunning as error:
            running.append(int(str(error.details["pid"])))
        # Whoever came second can call it all the same.
        control.connect(stopped.data).close()

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON_S)
    assert len(pids) == 1 and running == pids * 3
    stopped.pid = pids[0]


def test_after_a_kill_the_next_one_takes_over(daemon: Daemon) -> None:
    first, began = daemon.pid, start_time(daemon.pid)
    with daemon.local() as client:
        space = good(client.post("/v1/spaces", json={}))["id"]
    os.kill(first, signal.SIGKILL)
    _ended(first, began)
    assert os.path.exists(places.socket(daemon.data)), "it had no time to tidy up"
    assert not control.status(daemon.data).running
    assert daemon.start().pid != first
    with daemon.local() as client:
        assert good(client.get(f"/v1/spaces/{space}"))["state"] == "ready"


def test_commands_outlive_it(daemon: Daemon) -> None:
    script = "echo before; read x; echo after $x; exit 6"
    with daemon.local() as client:
        space = good(client.post("/v1/spaces", json={}))["id"]
    with daemon.websocket(f"/v1/spaces/{space}/exec") as connection:
        connection.send(f'{{"argv": ["sh", "-c", "{script}"], "stdin": true}}')
        session = Session(connection)
        run = session.until("started")["run"]["id"]
        session.until_output(b"before\n")
        daemon.stop()
        assert session.closed() == (1012, "The daemon ends; what runs in spaces goes on.")
    daemon.start()
    with daemon.websocket(f"/v1/runs/{run}/attach?stdout={len(session.out[1])}") as connection:
        again = Session(connection)
        again.out = dict(session.out)
        again.until("started")
        again.send(b"all\n")
        assert again.until("exit")["run"]["exit"]["code"] == 6
        assert again.out[1] == b"before\nafter all\n" and again.dropped == 0


def test_streams_and_waits_hear_of_the_end(daemon: Daemon) -> None:
    with daemon.local() as client:
        space = good(client.post("/v1/spaces", json={}))["id"]
        run = good(client.post(f"/v1/spaces/{space}/runs", json={"argv": ["sleep", "600"]}))
    told: dict[str, object] = {}

    def listen() -> None:
        with daemon.local() as own, own.stream("GET", "/v1/events") as response:
            lines = response.iter_lines()
            assert ": listening" in (next(lines), next(lines))
            barrier.wait(SOON_S)
            told["events"] = [line for line in lines if line]

    def wait() -> None:
        with daemon.local() as own:
            barrier.wait(SOON_S)
            told["wait"] = good(own.get(f"/v1/runs/{run['id']}/wait"))["state"]

    barrier = threading.Barrier(3)
    threads = [threading.Thread(target=listen), threading.Thread(target=wait)]
    for thread in threads:
        thread.start()
    barrier.wait(SOON_S)
    _until_waiting(daemon)
    control.stop(daemon.data)
    for thread in threads:
        thread.join(SOON_S)
    assert told["wait"] == "running"
    assert ": The daemon ends; what runs in spaces goes on." in str(told["events"])


def _until_waiting(daemon: Daemon) -> None:
    """Until the daemon has all three connections: two that wait, and this one."""
    with daemon.local() as client:
        for _ in range(1000):
            names = [line for line in Path(f"/proc/{daemon.pid}/net/unix").read_text().splitlines()]
            if sum(line.endswith(daemon.socket) for line in names) >= 4:
                return
            good(client.get("/v1/health"))
    raise AssertionError("nobody waits")


def test_an_exec_that_the_end_cuts_off_says_what_runs(daemon: Daemon) -> None:
    with daemon.local() as client:
        space = good(client.post("/v1/spaces", json={}))["id"]
    answers: list[httpx.Response] = []

    def run() -> None:
        with daemon.local() as own:
            body = {"argv": ["sh", "-c", "touch began; sleep 600"]}
            answers.append(own.post(f"/v1/spaces/{space}/exec", json=body))

    thread = threading.Thread(target=run)
    thread.start()
    with daemon.local() as client:
        while client.get(f"/v1/spaces/{space}/files/stat?path=began").status_code != 200:
            assert thread.is_alive()
    control.stop(daemon.data)
    thread.join(SOON_S)
    problem = answers[0].json()
    assert answers[0].status_code == 503 and problem["code"] == "daemon_unavailable"
    assert problem["run"]["space"] == space and problem["run"]["state"] == "running"


def test_an_administrator_may_end_it(daemon: Daemon) -> None:
    began = start_time(daemon.pid)
    with daemon.local() as client:
        response = client.post("/v1/shutdown")
        assert response.status_code == 202 and response.json() == {"ending": True}
    _ended(daemon.pid, began)
    assert not control.status(daemon.data).running


def test_a_path_longer_than_an_address(data: Path) -> None:
    deep = data / ("d" * 100) / ("e" * 100)
    daemon = Daemon(deep, listen=None)
    try:
        daemon.start()
        with control.connect(deep) as connection:
            connection.sendall(b"GET /v1/health HTTP/1.1\r\nHost: c\r\nConnection: close\r\n\r\n")
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        assert answer.startswith(b"HTTP/1.1 200")
        assert control.status(deep).address == ""
    finally:
        control.stop(deep)


def test_a_start_that_fails_says_why(refusing: Daemon) -> None:
    refusing.data.mkdir(parents=True)
    (refusing.data / "carrel.db").write_bytes(b"this is no database" * 1000)
    with pytest.raises(DaemonUnavailable) as caught:
        refusing.start()
    assert caught.value.message.startswith("The daemon did not start: ")
    assert caught.value.details["cause"] == "store_damaged"
    assert not control.status(refusing.data).running


@pytest.mark.parametrize("listen", ["nonsense", "256.1.1.1:1", "127.0.0.1:99999"])
def test_addresses_that_cannot_be(refusing: Daemon, listen: str) -> None:
    refusing.listen = listen
    with pytest.raises(DaemonUnavailable) as caught:
        refusing.start()
    assert listen in caught.value.message


def test_an_address_that_is_taken(refusing: Daemon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        refusing.listen = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(DaemonUnavailable) as caught:
            refusing.start()
    assert "in use" in caught.value.message


def test_a_start_that_dies_shows_the_log(
    stopped: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever happens before it can say anything itself."""
    (tmp_path / "uvloop.py").write_text("import os, sys\nprint('I fall', file=sys.stderr)\n")
    with (tmp_path / "uvloop.py").open("a") as file:
        file.write("sys.stderr.flush()\nos._exit(9)\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(DaemonUnavailable) as caught:
        stopped.start()
    assert "ended while it started" in caught.value.message
    assert "I fall" in str(caught.value.details["log"])


def test_a_folder_of_the_caller_is_not_imported(
    stopped: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "carrel.py").write_text("raise SystemExit('hijacked')")
    (tmp_path / "json.py").write_text("raise SystemExit('hijacked')")
    monkeypatch.chdir(tmp_path)
    assert stopped.start().pid > 0


def test_a_lock_that_names_somebody_else_is_not_believed(data: Path) -> None:
    """A number in a file is no process: without the lock it is nobody's."""
    places.make_folder(data)
    with open(places.lock(data), "w") as lock:
        lock.write(f"{os.getpid()} {start_time(os.getpid())}\n")
    assert places.holder(data) is None
    assert control.stop(data) is None
    assert not control.status(data).running


_SLOW_TO_REMOVE = """
import os, sys
data, ready, begun, never = sys.argv[1], *map(int, sys.argv[2:])
import carrel.app.service as service
import carrel.daemon.main as main
import carrel.service.shared as tasks

def remove_tree(folder):
    os.write(begun, b"x")
    os.read(never, 1)

service.remove_tree = remove_tree
main.TELL_S, main.LONGEST_S, tasks.CLOSE_S = 0.05, 6.0, 0.1
sys.exit(main.main(["--data", data, "--ready-fd", str(ready)]))
"""


def test_who_ends_it_hears_what_it_still_does(stopped: Daemon) -> None:
    """And waits for as long as it lives; what takes too long is left to the next daemon."""
    pipes = [os.pipe() for _ in range(3)]
    given = (pipes[0][1], pipes[1][1], pipes[2][0])
    argv = [sys.executable, "-c", _SLOW_TO_REMOVE, str(stopped.data), *map(str, given)]
    with subprocess.Popen(argv, pass_fds=given, stderr=subprocess.DEVNULL) as slow:
        try:
            assert select.select([pipes[0][0]], [], [], SOON_S)[0]
            with stopped.local() as client:
                space = good(client.post("/v1/spaces", json={"project": {"kind": "empty"}}))["id"]
                with pytest.raises(httpx.TimeoutException):
                    client.delete(f"/v1/spaces/{space}", params={"force": True}, timeout=0.5)
            assert select.select([pipes[1][0]], [], [], SOON_S)[0]
            told: list[str] = []
            # Less than it takes: only a daemon that is silent for so long hangs.
            assert control.stop(stopped.data, 3.0, told.append) == slow.pid
            assert slow.wait(SOON_S) == 0
        finally:
            slow.kill()
            for descriptor in (number for pipe in pipes for number in pipe):
                os.close(descriptor)
    assert told[0] == "1 space is being removed"
    stopped.start()
    with stopped.local() as client:
        # Who calls the space while the next daemon goes on waits until it is gone.
        again = client.delete(f"/v1/spaces/{space}", params={"force": True}, timeout=SOON_S)
        assert again.status_code == 404
        assert good(client.get("/v1/spaces"))["spaces"] == []
