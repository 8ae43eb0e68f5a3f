"""docs/api.md and the pages that it names: what a client is told that asks for what cannot be, by
plain HTTP. `test_contract` sees that no code is forgotten."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.daemon.requesting import daemon_with
from tests.daemon.rig import ANSWER_S, Daemon, bad, daemon_in, good
from tests.promises.test_hub import line

pytestmark = pytest.mark.xdist_group("errors")

SETTINGS = {"spaces_per_caller": 1, "hub_rate": 100, "hub_questions": 2, "hub_clients_in_space": 3}


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
        with daemon_with(SETTINGS) as found:
            yield found


@pytest.fixture(scope="module")
def there(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the rows below name."""
    folder = tmp_path_factory.mktemp("there")
    git, plain = folder / "git", folder / "plain"
    for one in (git, plain):
        one.mkdir()
        (one / "a.txt").write_text("a\n")
    words = ["git", "-C", str(git), "-c", "user.name=a", "-c", "user.email=a@b"]
    for more in (["init", "-qb", "main"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*words, *more], check=True)
    (folder / "setup").mkdir()
    (folder / "setup" / "carrel.toml").write_text('[setup]\nrun = ["exit 3"]\n')
    (folder / "loop").symlink_to("loop")
    (folder / "locked").mkdir(mode=0o555)
    with daemon.local() as client:
        asked = {"project": _folder(git)}
        made = [good(client.post("/v1/spaces", json=asked))["id"] for _ in range(3)]
        for number, one in enumerate(made[1:]):
            path = f"/v1/spaces/{one}/files?path=both.txt"
            assert client.put(path, content=f"{number}").is_success
        stopped = good(client.post("/v1/spaces", json={"name": "taken"}))["id"]
        good(client.post(f"/v1/spaces/{stopped}/stop"))
    return {
        **dict(zip(("space", "changed", "other"), made, strict=True)),
        **{"stopped": stopped, "data": str(daemon.data)},
        **{"git": str(git), "plain": str(plain), "file": str(plain / "a.txt")},
        **{"setup": str(folder / "setup"), "loop": str(folder / "loop")},
        "locked": str(folder / "locked"),
    }


def _folder(path: object) -> dict[str, str]:
    return {"kind": "folder", "location": str(path)}


def _git(location: str, **more: str) -> dict[str, Any]:
    return {"project": {"kind": "git", "location": location, **more}}


S = "/v1/spaces/{space}"
NEW = "POST /v1/spaces"
ABSENT = "nobodys.example/none:1"
WORK = {"instructions": "write a 1"}
TAKE = {"paths": ["both.txt"], "into": "{other}"}
ROWS: list[tuple[str, int, str, Any]] = [
    # Spaces
    ("space_not_found", 404, "GET /v1/spaces/sp_nobody", None),
    ("space_invalid", 422, NEW, {"runtime": "landlock", "image": "nobodys:1"}),
    ("name_taken", 409, NEW, {"name": "taken"}),
    ("state_conflict", 409, "POST /v1/spaces/{stopped}/exec", {"argv": ["true"]}),
    ("base_not_found", 404, NEW, {"base": "0" * 64}),
    ("tree_unavailable", 503, NEW, {"driver": "zfs-of-nobody"}),
    ("sandbox_unavailable", 503, NEW, {"runtime": "no-such-runtime"}),
    ("image_needed", 422, NEW, {"runtime": "podman"}),
    ("setup_failed", 422, NEW, {"project": _folder("{setup}"), "run_setup": True}),
    ("environment_refused", 422, NEW, {"project": _folder("{git}"), "dockerfile": "none"}),
    ("image_not_found", 404, NEW, {"image": "nobodys:1"}),
    ("server_not_found", 404, NEW, {"agent": "scripted", "mcp": ["nobodys"]}),
    ("model_not_supported", 422, NEW, {"agent": "scripted", "model": "none"}),
    ("unsupported_frontend", 422, NEW, {"agent": "nobody"}),
    # Projects
    ("project_not_found", 422, NEW, {"project": _folder("/no/where")}),
    ("project_not_a_folder", 422, NEW, {"project": _folder("{file}")}),
    ("project_invalid", 422, NEW, {"project": _folder("{data}")}),
    ("project_too_large", 422, NEW, {"project": _folder("{plain}"), "max_bytes": 1}),
    ("ref_not_found", 422, NEW, _git("{git}", ref="nowhere")),
    ("git_failed", 422, NEW, _git("http://127.0.0.1:1/nobodys.git")),
    ("archive_invalid", 422, NEW, {"project": {"kind": "archive", "location": "{file}"}}),
    ("project_unreadable", 422, NEW, {"project": {"kind": "archive", "location": "{loop}"}}),
    ("project_unreadable", 422, NEW, _git("{loop}")),
    ("project_invalid", 422, NEW, {"project": _folder("{loop}")}),
    ("project_read_only", 422, "POST /v1/requests", {"workspace_path": "{locked}", **WORK}),
    # Commands
    ("run_not_found", 404, "GET /v1/runs/ru_nobody", None),
    ("command_invalid", 422, f"POST {S}/exec", {"argv": ["true"], "cwd": "/nowhere/at/all"}),
    ("command_not_found", 422, f"POST {S}/exec", {"argv": ["no-such-program"]}),
    ("command_not_executable", 422, f"POST {S}/exec", {"argv": ["./a.txt"]}),
    # Files
    ("path_not_found", 404, f"GET {S}/files?path=none", None),
    ("path_escapes", 403, f"GET {S}/files?path=../x", None),
    ("path_invalid", 422, f"GET {S}/files?path=a%00b", None),
    ("path_wrong_kind", 409, f"GET {S}/files?path=.", None),
    ("path_exists", 409, f"POST {S}/files/mkdir", {"path": "a.txt"}),
    ("archive_invalid", 422, f"PUT {S}/archive?path=.", b"no archive"),
    ("copy_not_found", 404, f"POST {S}/copied", {"copy": "none"}),
    # Agents
    ("turn_not_found", 404, "GET /v1/turns/ru_nobody", None),
    ("frontend_not_installed", 409, f"POST {S}/turns", {"prompt": "x", "frontend": "gemini"}),
    ("unsupported_frontend", 422, "POST /v1/agents/scripted/install", None),
    ("unsupported_frontend", 422, "PUT /v1/agents/scripted/import", {}),
    ("credential_not_found", 404, "DELETE /v1/agents/claude-code/import", None),
    ("credential_not_found", 404, "DELETE /v1/credentials/none", None),
    ("path_not_found", 404, f"GET {S}/context/none", None),
    # Ports, and SSH
    ("port_not_forwarded", 404, f"DELETE {S}/ports/1", None),
    # Review
    ("checkpoint_not_found", 404, f"POST {S}/rewind", {"checkpoint": "cp_none"}),
    ("checkpoint_not_found", 404, f"POST {S}/fork", {"checkpoint": "cp_none"}),
    ("nothing_to_land", 409, f"POST {S}/land", {"branch": "landed"}),
    ("landing_refused", 409, "POST /v1/spaces/{stopped}/land", {}),
    ("queue_entry_not_found", 404, "POST /v1/queue/none/cancel", None),
    ("not_undoable", 409, "POST /v1/undo", {}),
    ("race_not_found", 404, "GET /v1/races/none", None),
    ("race_not_found", 404, "POST /v1/races/none/check", None),
    ("take_refused", 409, "POST /v1/spaces/{changed}/take", TAKE),
    ("comment_refused", 409, f"POST {S}/comments/send", {}),
    ("comment_not_found", 404, f"DELETE {S}/comments/none", None),
    # Requests
    ("request_not_found", 404, "GET /v1/requests/nobodys", None),
    ("version_not_found", 404, "GET /v1/series/nobodys/versions", None),
    ("request_invalid", 422, "POST /v1/requests", {"instructions": ""}),
    # The daemon
    ("token_not_found", 404, "DELETE /v1/tokens/none", None),
    ("space_invalid", 422, "POST /v1/tokens", {"scope": "space:sp_nobody"}),
    ("image_invalid", 422, "PUT /v1/images?name=broken", b"no archive"),
    ("image_not_found", 404, "GET /v1/images/none", None),
    ("engine_unavailable", 422, "POST /v1/images/pull", {"image": ABSENT, "engine": "docker"}),
    ("image_not_in_engine", 422, "POST /v1/images/pull", {"image": ABSENT, "local": True}),
    ("engine_failed", 502, "POST /v1/images/pull", {"image": "127.0.0.1:1/none:1"}),
    ("environment_refused", 422, "POST /v1/images/build", {"project": "{plain}"}),
    ("server_not_found", 404, "DELETE /v1/servers/none", None),
    ("instance_not_found", 404, "GET /v1/instances/in_nobody", None),
    ("route_not_found", 404, "GET /v1/nothing", None),
    ("method_not_allowed", 405, "PUT /v1/spaces", None),
]


def _filled(value: Any, there: dict[str, str]) -> Any:
    if isinstance(value, str):
        return value.format(**there)
    if isinstance(value, dict):
        return {name: _filled(one, there) for name, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, there) for one in value]
    return value


@pytest.mark.parametrize(
    ("code", "status", "asked", "body"), ROWS, ids=[f"{row[0]}-{row[2]}" for row in ROWS]
)
def test_a_refusal_has_its_code(
    owner: httpx.Client,
    there: dict[str, str],
    code: str,
    status: int,
    asked: str,
    body: Any,
) -> None:
    method, _, path = _filled(asked, there).partition(" ")
    given = {"content": body} if isinstance(body, bytes) else {"json": _filled(body, there)}
    answer = owner.request(method, path, **({} if body is None else given))
    told = bad(answer, status, code)
    # What one can do about it; HTTP's own need no word of ours.
    assert told.get("hint") or code in ("route_not_found", "method_not_allowed"), told


# What takes more than one call


def test_a_name_in_two_scopes(daemon: Daemon, owner: httpx.Client) -> None:
    made = []
    for team in ("a", "b"):
        with daemon.tcp(daemon.token(f"label:team={team}")) as client:
            made.append(good(client.post("/v1/spaces", json={"name": "same"}))["id"])
            told = client.post("/v1/spaces", json={"name": "more"})
            assert bad(told, 429, "too_many_spaces")["hint"]
    assert bad(owner.get("/v1/spaces/same"), 409, "space_ambiguous")["hint"]
    good(owner.delete(f"/v1/spaces/{made[0]}"))
    assert good(owner.get("/v1/spaces/same"))["id"] == made[1]
    # A space that gets another label keeps its name in the scope that gave it.
    good(owner.post("/v1/spaces", json={"name": "same"}))


def test_a_key_is_for_one_thing(owner: httpx.Client) -> None:
    key = {"Idempotency-Key": "for-one"}
    good(owner.post("/v1/spaces", json={"name": "keyed"}, headers=key))
    told = owner.post("/v1/spaces", json={"name": "another"}, headers=key)
    assert bad(told, 422, "idempotency_key_reused")["hint"]


def test_labels_of_carrels_own(owner: httpx.Client, there: dict[str, str]) -> None:
    for labels in ({"carrel.request": "x"}, {"carrel.x": ""}):
        told = owner.patch(f"/v1/spaces/{there['space']}", json={"labels": labels})
        bad(told, 422, "space_invalid")
        bad(owner.post("/v1/spaces", json={"labels": labels}), 422, "space_invalid")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files that nobody changes")
def test_a_file_that_may_not_be_touched(owner: httpx.Client) -> None:
    space = good(owner.post("/v1/spaces", json={"driver": "copy"}))
    path = f"/v1/spaces/{space['id']}/files?path=fixed"
    assert owner.put(path, content=b"as it is").is_success
    subprocess.run(["chattr", "+i", f"{space['path']}/fixed"], check=True)
    try:
        bad(owner.put(path, content=b"other"), 403, "path_denied")
        bad(owner.delete(path), 403, "path_denied")
    finally:
        subprocess.run(["chattr", "-i", f"{space['path']}/fixed"], check=True)


def test_a_check_that_fails_keeps_work_out(owner: httpx.Client, there: dict[str, str]) -> None:
    asked = {"branch": "checked", "check": "echo why; exit 3"}
    told = bad(owner.post(f"/v1/spaces/{there['other']}/land", json=asked), 409, "check_failed")
    assert "why" in json.dumps(told)


def test_a_port_of_the_host_that_is_taken(owner: httpx.Client, there: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        asked = {"port": 8000, "local": taken.getsockname()[1]}
        told = owner.post(f"/v1/spaces/{there['space']}/ports", json=asked)
    assert bad(told, 409, "port_unavailable")["hint"]


def test_a_head_that_is_too_large(owner: httpx.Client) -> None:
    told = owner.get("/v1/health", headers={"x-long": "x" * 100_000})
    bad(told, 431, "header_too_large")


def test_who_guesses_is_slowed_down(daemon: Daemon) -> None:
    """A good token comes in all the same."""
    secret = daemon.token("admin")
    with daemon.tcp("nobodys-token") as client:
        codes = [client.get("/v1/spaces").json()["code"] for _ in range(60)]
        assert codes[0] == "authentication_failed" and codes[-1] == "rate_limited"
        assert int(client.get("/v1/spaces").headers["retry-after"]) > 0
    with daemon.tcp(secret) as client:
        good(client.get("/v1/spaces"))


def test_an_agent_that_says_nothing(owner: httpx.Client) -> None:
    space = good(owner.post("/v1/spaces", json={"agent": "scripted"}))["id"]
    turn = good(owner.post(f"/v1/spaces/{space}/turns", json={"prompt": "sleep 0"}))["id"]
    told = good(owner.get(f"/v1/turns/{turn}", params={"wait_s": 60}))
    assert told["result"]["error"]["code"] == "empty_response", told


def test_a_data_folder_that_ssh_cannot_name() -> None:
    folder = Path(tempfile.mkdtemp(prefix='carrel-"'))
    folder.chmod(0o711)
    with daemon_in(folder, listen=None) as daemon, daemon.local() as client:
        assert bad(client.get("/v1/ssh"), 422, "ssh_unavailable")["detail"]


# By the hub


def test_the_hub_has_bounds(daemon: Daemon, there: dict[str, str]) -> None:
    """Of messages in a second, and of questions that wait."""
    space = there["space"]
    with line(daemon) as one:
        question = {"question": "Which?"}
        for _ in range(2):
            one.data("buffer_user_question", question, space=space)
        assert one.code("buffer_user_question", question, space=space) == "too_many_questions"
        for number in range(400):
            one.say("custom_x", {}, space=space, id=f"flood-{number}")
        told = next(found for found in iter(one.next, None) if found["type"] == "error")
        assert told["payload"]["code"] == "rate_limited" and told["payload"]["retry_after_ms"] > 0


CONNECT = """
import json, os, socket
held = []
for number in range(5):
    one = socket.socket(socket.AF_UNIX)
    one.connect(os.environ["CARREL_HUB"].removeprefix("unix:"))
    lines = one.makefile("rw")
    told = {"type": "client_register", "id": "1", "payload": {"kind": "agent"}}
    try:
        one.sendall(json.dumps(told).encode() + b"\\n")
    except BrokenPipeError:
        pass  # It was told why already.
    told = json.loads(lines.readline())
    held.append((one, lines))
    print(told["payload"].get("code", "in"))
"""


def test_so_many_clients_in_a_space(owner: httpx.Client, there: dict[str, str]) -> None:
    asked = {"argv": ["python3", "-c", CONNECT], "timeout_s": ANSWER_S}
    told = good(owner.post(f"/v1/spaces/{there['space']}/exec", json=asked))
    assert told["stdout"].split() == ["in"] * 3 + ["insufficient_resources"] * 2, told
