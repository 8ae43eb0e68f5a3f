"""Real servers behind the shim, asked by the official SDK's client."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from carrel.instances import inside
from tests.instances.inside.serving import TOKEN, WAIT_S, Served, connected, served
from tests.instances.installed import SERENA, require
from tests.instances.projects import make_project
from tests.sampling import every

SERVER = """\
import json, os, sys
import helper
from mcp.server.mcpserver import MCPServer

server = MCPServer("probe")

@server.tool()
def about() -> str:
    own = "CARREL_TOKEN" in os.environ
    return json.dumps([sys.argv, sys.path[0], own, __name__, helper.WORD])

{run}
"""
WAYS = {
    "the SDK": 'server.run("streamable-http", port=8123)',
    "uvicorn.run": "import uvicorn; uvicorn.run(server.streamable_http_app(), port=8123)",
    "a socket of its own": (
        "import uvicorn, socket; s = socket.create_server(('127.0.0.1', 0));"
        "from mcp.server.transport_security import TransportSecuritySettings as T;"
        "at = '127.0.0.1:%d' % s.getsockname()[1];"
        "app = server.streamable_http_app(transport_security=T(allowed_hosts=[at],"
        " allowed_origins=['http://' + at]));"
        "uvicorn.Server(uvicorn.Config(app)).run([s])"
    ),
    "bind_socket": (
        "import uvicorn; c = uvicorn.Config(server.streamable_http_app(), port=8123);"
        "uvicorn.Server(c).run([c.bind_socket()])"
    ),
}
SHIM = [sys.executable, "-I", str(inside.UVICORN_SHIM)]


def written(folder: Path, run: str) -> Path:
    (folder / "program").mkdir()
    (folder / "program" / "helper.py").write_text("WORD = 'found'\n")
    script = folder / "program" / "server.py"
    script.write_text(SERVER.replace("{run}", run))
    return script


@pytest.fixture(params=every(2, [*WAYS]))
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    script = written(tmp_path, WAYS[request.param])
    with served(tmp_path, SHIM, [str(script), "--word", "x y"]) as found:
        yield found


async def test_with_the_token_and_from_inside(server: Served, tmp_path: Path) -> None:
    script = str(tmp_path / "program" / "server.py")
    for url, token in ((server.url, TOKEN), (server.inside_url, "")):
        async with connected(url, token) as client:
            answer = await client.call_tool("about", {})
            said = json.loads(answer.content[0].text)  # type: ignore[union-attr]
            wanted = [[script, "--word", "x y"], str(tmp_path / "program"), False]
            assert said == [*wanted, "__main__", "found"]
    for wrong in ({}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": TOKEN}):
        async with httpx2.AsyncClient(headers=wrong, timeout=WAIT_S) as http:
            for path in ("", "/other"):
                refused = await http.post(server.url + path, json={})
                assert refused.status_code == 401
                assert refused.headers["www-authenticate"] == "Bearer"


async def test_a_page_that_was_led_here_is_refused(tmp_path: Path) -> None:
    script = written(tmp_path, WAYS["the SDK"])
    with served(tmp_path, SHIM, [str(script)]) as server:
        headers = {"Authorization": f"Bearer {TOKEN}", "Host": "evil.example"}
        async with httpx2.AsyncClient(headers=headers, timeout=WAIT_S) as http:
            assert (await http.post(server.url, json={})).status_code == 421


async def test_the_real_serena(tmp_path: Path) -> None:
    require("serena")
    project = make_project(tmp_path / "project", "Basket")
    words = ["start-mcp-server", "--transport", "streamable-http", "--host", "127.0.0.1"]
    words += ["--port", "0", "--project", str(project.path), "--agent-interface", "tools"]
    words += ["--context", "ide", "--enable-web-dashboard", "false"]
    env = {"SERENA_HOME": str(tmp_path / "home"), "SERENA_USAGE_REPORTING": "false"}
    (tmp_path / "home").mkdir()
    (project.path / ".serena").mkdir()
    (project.path / ".serena" / "project.yml").write_text(
        "project_name: project\nlanguage_servers: [python_jedi]\n"
    )
    env["PATH"] = f"{SERENA}:{os.environ['PATH']}"
    program = [str(SERENA / "python"), "-I", str(inside.UVICORN_SHIM)]
    with served(tmp_path, program, [str(SERENA / "serena"), *words], env) as server:
        async with connected(server.url) as client:
            answer = await client.call_tool("get_symbols_overview", {"relative_path": "shop.py"})
            assert "Basket" in answer.content[0].text  # type: ignore[union-attr]


WARM = """\
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("shim", {shim!r})
shim = importlib.util.module_from_spec(spec)
spec.loader.exec_module(shim)
import mcp.server.mcpserver, uvicorn
given, (script, *args) = shim.options(sys.argv[1:])
token = os.environ.pop("CARREL_TOKEN")
if (child := os.fork()) == 0:
    shim.serve(script, args, [int(given["--fd"])], token, given["--inside"])
import signal
signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
os.waitpid(child, 0)
"""


async def test_a_process_that_had_loaded_it_already(tmp_path: Path) -> None:
    script = written(tmp_path, WAYS["the SDK"])
    warm = WARM.format(shim=str(inside.UVICORN_SHIM))
    with served(tmp_path, [sys.executable, "-I", "-c", warm], [str(script), "word"]) as server:
        async with connected(server.url) as client:
            answer = await client.call_tool("about", {})
            said = json.loads(answer.content[0].text)  # type: ignore[union-attr]
            wanted = [[str(script), "word"], str(tmp_path / "program"), False]
            assert said == [*wanted, "__main__", "found"]


def test_workers_would_not_ask_for_the_token(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text("import uvicorn; uvicorn.run('server:app', workers=2)")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.fileno()
        ran = subprocess.run(
            [*SHIM, "--fd", str(number), "--", str(tmp_path / "server.py")],
            pass_fds=(number,),
            env={"CARREL_TOKEN": TOKEN},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
    assert ran.returncode == 1
    assert "carrel: uvicorn's workers and reload cannot be used here" in ran.stderr


@pytest.mark.parametrize(
    ("words", "token", "why"),
    [
        (["--fd", "0", "--", "x.py"], "", "CARREL_TOKEN is not set"),
        (["--fd", "0", "--", "x.py"], "t", "--fd is no socket"),
        (["--fd", "0"], "t", "usage"),
        (["--port", "0", "--", "x.py"], "t", "usage"),
    ],
)
def test_what_cannot_be(words: list[str], token: str, why: str) -> None:
    ran = subprocess.run(
        [*SHIM, *words],
        env={"CARREL_TOKEN": token},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert why in ran.stderr and ran.stderr.count("\n") == 1
