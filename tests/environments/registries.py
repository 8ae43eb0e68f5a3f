"""A package index on loopback, for pip, uv, npm, cargo and apt, with one package that the tests
make. Files have names as the public ones give them, and may be kept as long."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WHEEL = "hello-1.0-py3-none-any.whl"
KEEP = {"text/html": "max-age=600, public", "application/json": "public, max-age=300"}
"""How long pages may be kept; files for ever."""
TARBALL = "/npm/hello/-/hello-1.0.0.tgz"
CRATE = "/crates/hello/1.0.0"


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


def wheel_path() -> str:
    digest = hashlib.blake2b(wheel(), digest_size=32).hexdigest()
    return f"/packages/{digest[:2]}/{digest[2:4]}/{digest[4:]}/{WHEEL}"


def tarball(says: str = "hi") -> bytes:
    files = {
        "package/package.json": json.dumps({"name": "hello", "version": "1.0.0"}),
        "package/index.js": f"module.exports = {json.dumps(says)};\n",
    }
    return packed(files)


def crate(says: str = "hi") -> bytes:
    manifest = '[package]\nname = "hello"\nversion = "1.0.0"\nedition = "2021"\n'
    source = f"pub const SAYS: &str = {json.dumps(says)};\n"
    return packed({"hello-1.0.0/Cargo.toml": manifest, "hello-1.0.0/src/lib.rs": source})


def packed(files: Mapping[str, str]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text), 0o644
            archive.addfile(entry, io.BytesIO(text.encode()))
    return gzip.compress(made.getvalue(), mtime=0)


def deb() -> bytes:
    """As `ar` and `dpkg-deb` make it."""
    about = "Package: hello\nVersion: 1.0\nArchitecture: all\nMaintainer: x <x@x>\nDescription: x\n"
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.gz": packed({"./control": about}),
        "data.tar.gz": packed({"./usr/share/hello": "hi\n"}),
    }
    made = b"!<arch>\n"
    for name, content in members.items():
        made += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        made += content + b"\n" * (len(content) % 2)
    return made


def deb_index() -> bytes:
    digest = hashlib.sha256(deb()).hexdigest()
    about = "Package: hello\nVersion: 1.0\nArchitecture: all\nDescription: x\n"
    return f"{about}Filename: ./hello.deb\nSize: {len(deb())}\nSHA256: {digest}\n".encode()


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
    def cargo(self) -> str:
        return f"sparse+http://{self.host}/index/"

    @property
    def npm(self) -> str:
        return f"http://{self.host}/npm/"

    def answer(self, path: str) -> tuple[str, bytes] | None:
        if path == "/simple/hello/":
            digest = hashlib.sha256(wheel()).hexdigest()
            link = f'<a href="http://{self.host}{wheel_path()}#sha256={digest}">{WHEEL}</a>'
            return "text/html", f"<!DOCTYPE html><html><body>{link}</body></html>".encode()
        if path == wheel_path():
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
        if "deb.invalid/apt/" in path:
            # As a proxy is asked.
            known = {"Packages": deb_index(), "hello.deb": deb()}
            content = known.get(path.rpartition("/")[2])
            return None if content is None else ("application/octet-stream", content)
        return self._answer_cargo(path)

    def _answer_cargo(self, path: str) -> tuple[str, bytes] | None:
        if path == "/index/config.json":
            return "application/json", json.dumps({"dl": f"http://{self.host}/crates"}).encode()
        if path == "/index/he/ll/hello":
            digest = hashlib.sha256(crate()).hexdigest()
            version = {"name": "hello", "vers": "1.0.0", "deps": [], "cksum": digest}
            line = {**version, "features": {}, "yanked": False}
            return "application/json", json.dumps(line).encode()
        if path == f"{CRATE}/download":
            return "application/octet-stream", crate()
        return None


@contextmanager
def serving() -> Iterator[Registry]:
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            registry.asked.append(self.path)
            for name in ("Authorization", "Proxy-Authorization"):
                if name in self.headers:
                    registry.passwords.append(self.headers[name])
            kind, content = registry.answer(self.path) or ("", b"")
            self.send_response(200 if kind else 404)
            self.send_header("Content-Type", kind or "text/plain")
            self.send_header("Content-Length", str(len(content)))
            if kind:
                keep = KEEP.get(kind, "max-age=365000000, immutable, public")
                self.send_header("Cache-Control", keep)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def do_HEAD(self) -> None:
            self.do_GET()

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
