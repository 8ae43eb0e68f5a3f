"""A package index on loopback, for pip and npm, with one package that the tests make."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WHEEL = "hello-1.0-py3-none-any.whl"
TARBALL = "/npm/hello/-/hello-1.0.0.tgz"


def wheel() -> bytes:
    info = "hello-1.0.dist-info"
    files = {
        "hello.py": "SAYS = 'hi'\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: hello\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return made.getvalue()


def tarball(says: str = "hi") -> bytes:
    files = {
        "package/package.json": json.dumps({"name": "hello", "version": "1.0.0"}),
        "package/index.js": f"module.exports = {json.dumps(says)};\n",
    }
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text), 0o644
            archive.addfile(entry, io.BytesIO(text.encode()))
    return gzip.compress(made.getvalue(), mtime=0)


def integrity(content: bytes) -> str:
    return "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()


@dataclass
class Registry:
    """`asked` are the paths that were asked for, `passwords` the credentials that came along."""

    port: int = 0
    asked: list[str] = field(default_factory=list)
    passwords: list[str] = field(default_factory=list)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pip(self) -> str:
        return f"http://{self.host}/simple"

    @property
    def npm(self) -> str:
        return f"http://{self.host}/npm/"

    def answer(self, path: str) -> tuple[str, bytes] | None:
        if path == "/simple/hello/":
            digest = hashlib.sha256(wheel()).hexdigest()
            link = f'<a href="/files/{WHEEL}#sha256={digest}">{WHEEL}</a>'
            return "text/html", f"<!DOCTYPE html><html><body>{link}</body></html>".encode()
        if path == f"/files/{WHEEL}":
            return "application/octet-stream", wheel()
        if path == "/npm/hello":
            url = f"http://{self.host}{TARBALL}"
            dist = {"tarball": url, "integrity": integrity(tarball())}
            version = {"name": "hello", "version": "1.0.0", "dist": dist}
            whole = {"name": "hello", "dist-tags": {"latest": "1.0.0"}}
            packument = {**whole, "versions": {"1.0.0": version}}
            return "application/json", json.dumps(packument).encode()
        if path == TARBALL:
            return "application/octet-stream", tarball()
        return None


@contextmanager
def serving() -> Iterator[Registry]:
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            registry.asked.append(self.path)
            if "Authorization" in self.headers:
                registry.passwords.append(self.headers["Authorization"])
            kind, content = registry.answer(self.path) or ("", b"")
            self.send_response(200 if kind else 404)
            self.send_header("Content-Type", kind or "text/plain")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self) -> None:
            # What is left of it would be the next request: npm tries again after ten seconds.
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if "Content-Length" not in self.headers:
                self.close_connection = True
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    registry.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
