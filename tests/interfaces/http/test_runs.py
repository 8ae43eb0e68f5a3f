"""Commands through the API: to their end, without waiting, with input, signals and output."""

from __future__ import annotations

import base64
import signal
import time
from typing import Any

import httpx
import pytest

from carrel.api import wire
from carrel.api.types.runs import RunInfo
from tests.daemon.rig import bad, good, post

LATEST_S = 30.0
"""A command on a busy machine."""


def _exec(client: httpx.Client, space: dict[str, Any], *argv: str, **more: Any) -> dict[str, Any]:
    response = post(client, f"/v1/spaces/{space['id']}/exec", {"argv": list(argv), **more})
    answer: dict[str, Any] = good(response)
    return answer


def _start(client: httpx.Client, space: dict[str, Any], *argv: str, **more: Any) -> dict[str, Any]:
    body = {"argv": list(argv), **more}
    response = client.post(f"/v1/spaces/{space['id']}/runs", json=body)
    assert response.status_code == 201, response.text
    run: dict[str, Any] = response.json()
    return run


def _ended(client: httpx.Client, run: dict[str, Any]) -> dict[str, Any]:
    until = time.monotonic() + LATEST_S
    while time.monotonic() < until:
        run = good(client.get(f"/v1/runs/{run['id']}/wait", params={"timeout_s": 5}))
        if run["state"] in ("ended", "failed"):
            return run
    raise AssertionError(f"still {run['state']}")


def test_exec_runs_to_the_end(client: httpx.Client, space: dict[str, Any]) -> None:
    answer = _exec(client, space, "sh", "-c", "echo out; echo err >&2; exit 3")
    assert answer["stdout"] == "out\n" and answer["stderr"] == "err\n"
    assert answer["truncated"] is False and "stdout_base64" not in answer
    run = answer["run"]
    wire.from_plain(run, RunInfo)
    assert run["state"] == "ended" and run["space"] == space["id"]
    assert run["exit"]["reason"] == "exited" and run["exit"]["code"] == 3
    assert run["exit"]["started_at"] <= run["exit"]["ended_at"]


def test_environment_folder_and_words_arrive(client: httpx.Client, space: dict[str, Any]) -> None:
    good(client.post(f"/v1/spaces/{space['id']}/files/mkdir", json={"path": "sub"}))
    script = 'printf "%s|%s|%s" "$GREETING" "$(basename "$PWD")" "$1"'
    argv = ["sh", "-c", script, "sh", "a b'\"$x"]
    answer = _exec(client, space, *argv, env={"GREETING": "hé"}, cwd="sub")
    assert answer["stdout"] == "hé|sub|a b'\"$x"


def test_bytes_that_are_no_text_arrive(client: httpx.Client, space: dict[str, Any]) -> None:
    """An argument is bytes; JSON says them as lone surrogates."""
    answer = _exec(client, space, "printf", "%s", "a\udcffb", base64=True)
    assert base64.b64decode(answer["stdout_base64"]) == b"a\xffb"
    assert answer["run"]["argv"][2] == "a\udcffb" and "stdout" not in answer
    text = _exec(client, space, "printf", "a\\377b")
    assert text["stdout"] == "a\N{REPLACEMENT CHARACTER}b"


def test_standard_input_as_text_and_base64(client: httpx.Client, space: dict[str, Any]) -> None:
    assert _exec(client, space, "cat", stdin="hé\n")["stdout"] == "hé\n"
    data = base64.b64encode(bytes(range(256))).decode()
    assert _exec(client, space, "cat", stdin_base64=data, base64=True)["stdout_base64"] == data
    assert _exec(client, space, "cat")["stdout"] == ""
    path = f"/v1/spaces/{space['id']}/exec"
    twice = {"argv": ["cat"], "stdin": "", "stdin_base64": ""}
    bad(client.post(path, json=twice), 422, "message_invalid")
    bad(client.post(path, json={"argv": ["cat"], "stdin_base64": "%"}), 422, "message_invalid")


def test_more_input_than_a_pipe_holds(client: httpx.Client, space: dict[str, Any]) -> None:
    data = "x" * 700_000
    answer = _exec(client, space, "sh", "-c", "sleep 0.2; wc -c", stdin=data)
    assert answer["stdout"].strip() == "700000"
    unread = _exec(client, space, "true", stdin=data)
    assert unread["run"]["exit"]["code"] == 0


def test_the_end_of_long_output_is_kept(client: httpx.Client, space: dict[str, Any]) -> None:
    answer = _exec(client, space, "seq", "1000000", max_output_bytes=100)
    assert answer["truncated"] is True and len(answer["stdout"]) == 100
    assert answer["stdout"].endswith("999999\n1000000\n")
    whole = _exec(client, space, "seq", "1000", max_output_bytes=0)
    assert whole["stdout"] == "" and whole["truncated"] is True


@pytest.mark.parametrize("most", [200_000, 200_001, 1 << 20, 16 << 20])
def test_much_output_is_told_as_it_was(
    client: httpx.Client, space: dict[str, Any], most: int
) -> None:
    """However it is cut into pieces."""
    whole = "aé€😀\0\n".encode() * 100_000 + b"\xff"
    script = "import sys; sys.stdout.buffer.write('aé€😀\\0\\n'.encode() * 100_000 + b'\\xff')"
    script += "; sys.stderr.write('x')"
    text = _exec(client, space, "python3", "-c", script, max_output_bytes=most)
    assert text["stdout"] == whole[-most:].decode("utf-8", "replace")
    assert text["stderr"] == "x" and text["truncated"] is (len(whole) > most)
    told = _exec(client, space, "python3", "-c", script, max_output_bytes=most, base64=True)
    assert base64.b64decode(told["stdout_base64"]) == whole[-most:]


def test_a_command_has_its_time(client: httpx.Client, space: dict[str, Any]) -> None:
    run = _exec(client, space, "sleep", "60", timeout_s=0.2)["run"]
    assert run["exit"]["reason"] == "timeout"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"argv": ["no-such-program"]}, "command_not_found"),
        ({"argv": ["/etc/passwd"]}, "command_not_executable"),
        ({"argv": ["true"], "cwd": "none"}, "command_invalid"),
        ({"argv": [""]}, "command_invalid"),
        ({"argv": ["a\0b"]}, "command_invalid"),
        ({"argv": []}, "message_invalid"),
        ({"argv": "true"}, "message_invalid"),
        ({"argv": ["true"], "timeout_s": 0}, "message_invalid"),
        ({"argv": ["true"], "env": {"A": 1}}, "message_invalid"),
        ({"argv": ["true"], "terminal": True}, "message_invalid"),
        ({"argv": ["\ud800"]}, "message_invalid"),
    ],
)
def test_what_cannot_run(
    client: httpx.Client, space: dict[str, Any], body: object, code: str
) -> None:
    for verb in ("exec", "runs"):
        bad(post(client, f"/v1/spaces/{space['id']}/{verb}", body), 422, code)


def test_a_run_is_started_listed_and_waited_for(
    client: httpx.Client, space: dict[str, Any]
) -> None:
    run = _start(client, space, "sh", "-c", "read line; echo got $line", stdin="it\n")
    assert run["state"] == "running" and run["pid"] > 0
    ended = _ended(client, run)
    assert ended["exit"]["code"] == 0
    assert good(client.get(f"/v1/runs/{run['id']}"))["state"] == "ended"
    newer = _start(client, space, "true")
    _ended(client, newer)
    listed = good(client.get(f"/v1/spaces/{space['id']}/runs"))["runs"]
    assert [one["id"] for one in listed] == [newer["id"], run["id"]]
    limited = good(client.get(f"/v1/spaces/{space['id']}/runs", params={"limit": 1}))["runs"]
    assert [one["id"] for one in limited] == [newer["id"]]


def test_waiting_has_an_end_of_its_own(client: httpx.Client, space: dict[str, Any]) -> None:
    run = _start(client, space, "sleep", "60")
    waited = good(client.get(f"/v1/runs/{run['id']}/wait", params={"timeout_s": 0.05}))
    assert waited["state"] == "running"
    assert good(client.get(f"/v1/spaces/{space['id']}"))["live_runs"] == 1
    bad(client.get(f"/v1/runs/{run['id']}/wait", params={"timeout_s": 61}), 422, "message_invalid")
    good(client.post(f"/v1/runs/{run['id']}/signal", json={"signal": "KILL"}))
    assert _ended(client, run)["exit"]["signal"] == signal.SIGKILL


def test_signals(client: httpx.Client, space: dict[str, Any]) -> None:
    script = "trap 'echo usr; exit 7' USR1; echo ready; while :; do sleep 0.05; done"
    run = _start(client, space, "sh", "-c", script)
    _output(client, run, lambda data: b"ready" in data)
    path = f"/v1/runs/{run['id']}/signal"
    bad(client.post(path, json={"signal": "SIGUSR1"}), 422, "message_invalid")
    bad(client.post(path, json={"signal": 10}), 422, "message_invalid")
    good(client.post(path, json={"signal": "USR1"}))
    assert _ended(client, run)["exit"]["code"] == 7
    assert good(client.post(path, json={"signal": "USR1"}))["state"] == "ended"


def _output(client: httpx.Client, run: dict[str, Any], enough: Any) -> bytes:
    until, offset, found = time.monotonic() + LATEST_S, 0, b""
    while time.monotonic() < until:
        response = client.get(f"/v1/runs/{run['id']}/output", params={"offset": offset})
        assert int(response.headers["Carrel-Offset"]) == offset
        found += response.content
        offset += len(response.content)
        if enough(found) or response.headers["Carrel-Ended"] == "true":
            return found
        good(client.get(f"/v1/runs/{run['id']}/wait", params={"timeout_s": 0.05}))
    raise AssertionError(f"only {found!r}")


def test_output_is_read_in_parts(client: httpx.Client, space: dict[str, Any]) -> None:
    run = _start(client, space, "sh", "-c", "printf 0123456789; printf err >&2")
    _ended(client, run)
    path = f"/v1/runs/{run['id']}/output"
    part = client.get(path, params={"offset": 3, "limit": 4})
    assert part.content == b"3456" and part.headers["Carrel-Ended"] == "false"
    assert part.headers["content-type"] == "application/octet-stream"
    assert part.headers["X-Content-Type-Options"] == "nosniff"
    rest = client.get(path, params={"offset": 7})
    assert rest.content == b"789" and rest.headers["Carrel-Ended"] == "true"
    exact = client.get(path, params={"offset": 7, "limit": 3})
    assert exact.content == b"789" and exact.headers["Carrel-Ended"] == "true"
    errors = client.get(path, params={"stream": "stderr"})
    assert errors.content == b"err"
    beyond = client.get(path, params={"offset": 99})
    assert beyond.content == b"" and beyond.headers["Carrel-Ended"] == "true"
    bad(client.get(path, params={"stream": "stdin"}), 422, "message_invalid")
    bad(client.get(path, params={"offset": -1}), 422, "message_invalid")


def test_runs_that_are_not_there(client: httpx.Client) -> None:
    for path in ("", "/wait", "/output"):
        bad(client.get(f"/v1/runs/ru_aaaaaaaaaaaa{path}"), 404, "run_not_found")
        bad(client.get(f"/v1/runs/..%00{path}"), 404, "run_not_found")
    signal_path = "/v1/runs/ru_aaaaaaaaaaaa/signal"
    bad(client.post(signal_path, json={"signal": "TERM"}), 404, "run_not_found")
    bad(client.post("/v1/spaces/none/exec", json={"argv": ["true"]}), 404, "space_not_found")
    bad(client.get("/v1/spaces/none/runs"), 404, "space_not_found")


def test_a_client_that_goes_away_leaves_the_command(
    client: httpx.Client, space: dict[str, Any]
) -> None:
    body = {"argv": ["sh", "-c", "sleep 0.5; echo done > file"]}
    with pytest.raises(httpx.ReadTimeout):
        client.post(f"/v1/spaces/{space['id']}/exec", json=body, timeout=0.1)
    (run,) = good(client.get(f"/v1/spaces/{space['id']}/runs"))["runs"]
    assert _ended(client, run)["exit"]["code"] == 0
    assert client.get(f"/v1/spaces/{space['id']}/files?path=file").content == b"done\n"
