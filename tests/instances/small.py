"""A small MCP server that lies in the project itself, so that every sandbox sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FILE = "small.py"
LAST_WORDS = "I cannot go on like this"
PYTHON = "/usr/bin/python3"

_TEXT = """
import http.server, json, signal, sys

def answer(message):
    about = {"name": "small", "version": "1"}
    if message["method"] == "initialize":
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}
    if message["method"] == "tools/list":
        return {"tools": [{"name": n, "inputSchema": {"type": "object"}} for n in ("echo", "read")]}
    if message["method"] == "tools/call":
        given = message["params"]["arguments"]
        text = open(given["path"]).read() if "path" in given else json.dumps(given)
        return {"content": [{"type": "text", "text": text}]}

def replied(message):
    result = answer(message)
    about = {"error": {"code": -32601, "message": "no"}} if result is None else {"result": result}
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], **about}).encode()

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        body = replied(message) if "id" in message else b""
        self.send_response(200 if body else 202)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

mode = sys.argv[1]
if mode == "http":
    http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler).serve_forever()
if mode == "streams":
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if message.get("method") == "crash":
            sys.exit("WORDS")
        if "id" in message:
            sys.stdout.buffer.write(replied(message) + b"\\n")
            sys.stdout.buffer.flush()
if mode == "never":
    signal.pause()
if mode == "fails":
    sys.exit("WORDS")
"""
SCRIPT = _TEXT.lstrip().replace("WORDS", LAST_WORDS)


def put_small(project: Path) -> Path:
    (project / FILE).write_text(SCRIPT)
    return project


def small(mode: str = "http", **more: Any) -> dict[str, Any]:
    """As the API takes it."""
    return {"command": command(mode), "stdio": command("streams"), **more}


def command(mode: str) -> list[str]:
    return [PYTHON, f"{{project}}/{FILE}", mode]
