"""Files through the API: parts, streams, odd names, and what is refused."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import socket
import tarfile
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import zstandard

from tests.daemon.rig import ANSWER_S, LOOK_S, Daemon, bad, good, post

BIG = 6 << 20
"""More than a body that is kept in memory."""


@pytest.fixture
def files(space: dict[str, Any]) -> str:
    return f"/v1/spaces/{space['id']}/files"


def _names(client: httpx.Client, files: str, path: str = ".") -> list[str]:
    entries = good(client.get(f"{files}/list", params={"path": path}))["entries"]
    return [entry["name"] for entry in entries]


@contextlib.contextmanager
def _unfinished(daemon: Daemon, files: str, secret: str, size: int) -> Iterator[None]:
    """An upload that comes so far, and no further."""
    host, port = daemon.address.rsplit(":", 1)
    with socket.create_connection((host.rpartition("/")[2], int(port)), ANSWER_S) as connection:
        head = f"PUT {files}?path={connection.getsockname()[1]} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        head += f"Authorization: Bearer {secret}\r\nContent-Length: {1 << 40}\r\n\r\n"
        connection.sendall(head.encode() + bytes(size))
        yield


def test_uploads_that_never_end_keep_nobody_else_out(
    daemon: Daemon, client: httpx.Client, space: dict[str, Any], files: str
) -> None:
    secret, other = daemon.token(f"space:{space['id']}"), daemon.token(f"space:{space['id']}")
    with contextlib.ExitStack() as stack:
        for size in (*[4 * BIG] * 4, *[BIG] * 4):
            stack.enter_context(_unfinished(daemon, files, secret, size))
        # Sooner than those are cut off that say nothing more, which one more byte delays.
        with daemon.tcp(other) as stranger:
            for name, one in (("own", client), ("other", stranger)):
                good(one.put(files, params={"path": name}, content=bytes(BIG), timeout=20))


def test_writing_and_reading(client: httpx.Client, files: str) -> None:
    written = good(client.put(files, params={"path": "a.sh", "mode": "750"}, content=b"#!\n"))
    assert written["name"] == "a.sh" and written["mode"] == "750" and written["size"] == 3
    response = client.get(files, params={"path": "a.sh"})
    assert response.content == b"#!\n" and response.headers["Accept-Ranges"] == "bytes"
    assert response.headers["content-type"] == "application/octet-stream"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    again = good(client.put(files, params={"path": "a.sh"}, content=b""))
    assert again["mode"] == "750" and again["size"] == 0
    assert client.get(files, params={"path": "a.sh"}).content == b""


@pytest.mark.parametrize(
    ("header", "status", "content", "told"),
    [
        ("bytes=0-3", 206, b"0123", "bytes 0-3/10"),
        ("bytes=4-", 206, b"456789", "bytes 4-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=-99", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=8-99", 206, b"89", "bytes 8-9/10"),
        ("bytes=0-1,4-5", 200, b"0123456789", None),
        ("lines=0-1", 200, b"0123456789", None),
        ("bytes=5-2", 200, b"0123456789", None),
        ("bytes=-", 200, b"0123456789", None),
    ],
)
def test_parts(
    client: httpx.Client, files: str, header: str, status: int, content: bytes, told: str | None
) -> None:
    good(client.put(files, params={"path": "ten"}, content=b"0123456789"))
    response = client.get(files, params={"path": "ten"}, headers={"Range": header})
    assert (response.status_code, response.content) == (status, content)
    assert response.headers.get("Content-Range") == told


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=99-100", "bytes=-0"])
def test_parts_that_are_not_there(client: httpx.Client, files: str, header: str) -> None:
    good(client.put(files, params={"path": "ten"}, content=b"0123456789"))
    response = client.get(files, params={"path": "ten"}, headers={"Range": header})
    bad(response, 416, "range_not_satisfiable")
    assert response.headers["Content-Range"] == "bytes */10"


def _pieces(size: int) -> Iterator[bytes]:
    block = bytes(range(256)) * 256
    for start in range(0, size, len(block)):
        yield block[: min(len(block), size - start)]


def test_large_files_are_streamed(client: httpx.Client, daemon: Daemon, files: str) -> None:
    expected = hashlib.sha256(b"".join(_pieces(BIG * 4))).hexdigest()
    before = _peak(daemon.pid)
    good(client.put(files, params={"path": "big"}, content=_pieces(BIG * 4)))
    digest = hashlib.sha256()
    with client.stream("GET", files, params={"path": "big"}) as response:
        assert response.headers["Content-Length"] == str(BIG * 4)
        for piece in response.iter_bytes():
            digest.update(piece)
    assert digest.hexdigest() == expected
    middle = {"Range": f"bytes={BIG}-{BIG * 2 - 1}"}
    part = client.get(files, params={"path": "big"}, headers=middle)
    assert part.status_code == 206 and len(part.content) == BIG
    assert _peak(daemon.pid) - before < 20 << 20


def _peak(pid: int) -> int:
    with open(f"/proc/{pid}/status") as status:
        (line,) = [line for line in status if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def test_an_upload_that_breaks_off_leaves_nothing(
    client: httpx.Client, daemon: Daemon, files: str
) -> None:
    for announced in (100, BIG * 2):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(daemon.socket)
            head = f"PUT {files}?path=half HTTP/1.1\r\nHost: carrel\r\n"
            head += f"Content-Length: {announced}\r\n\r\n"
            connection.sendall(head.encode() + b"x" * (announced // 2))
    bad(client.get(f"{files}/stat", params={"path": "half"}), 404, "path_not_found")
    # What waits for the lock of the space comes after all who were there before.
    assert _names(client, files) == []


def test_a_download_that_breaks_off_leaves_nothing_open(
    client: httpx.Client, daemon: Daemon, files: str
) -> None:
    good(client.put(files, params={"path": "big"}, content=_pieces(BIG)))
    for _ in range(3):
        with daemon.local() as other, other.stream("GET", files, params={"path": "big"}) as reply:
            next(reply.iter_bytes())
    good(client.delete(files, params={"path": "big"}))
    until = time.monotonic() + ANSWER_S
    while any(name.endswith("/big (deleted)") for name in _open_names(daemon.pid)):
        assert time.monotonic() < until, _open_names(daemon.pid)
        good(client.get("/v1/health"))
        time.sleep(LOOK_S)


def _open_names(pid: int) -> list[str]:
    names = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            names.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return names


def test_folders_moves_and_deletions(client: httpx.Client, files: str) -> None:
    good(client.post(f"{files}/mkdir", json={"path": "a/b", "mode": "700", "parents": True}))
    assert good(client.get(f"{files}/stat", params={"path": "a/b"}))["type"] == "folder"
    bad(client.post(f"{files}/mkdir", json={"path": "a/b"}), 409, "path_exists")
    good(client.put(files, params={"path": "a/b/file"}, content=b"x"))
    good(client.post(f"{files}/move", json={"source": "a/b/file", "target": "file"}))
    good(client.put(files, params={"path": "other"}, content=b"y"))
    taken = {"source": "other", "target": "file"}
    bad(client.post(f"{files}/move", json=taken), 409, "path_exists")
    good(client.post(f"{files}/move", json={**taken, "replace": True}))
    assert client.get(files, params={"path": "file"}).content == b"y"
    good(client.put(files, params={"path": "a/b/file"}, content=b"x"))
    bad(client.delete(files, params={"path": "a"}), 409, "path_wrong_kind")
    good(client.delete(files, params={"path": "a", "recursive": "true"}))
    assert _names(client, files) == ["file"]


def test_names_that_are_no_text(client: httpx.Client, files: str) -> None:
    """Bytes in a query, escapes in JSON: what comes out can be sent back."""
    for name in (b"caf\xe9", b"\xff\xfe", b"tab\there", b"plus+and space", "naïve".encode()):
        path = quote(name, safe="")
        good(client.put(f"{files}?path={path}", content=name))
        assert client.get(f"{files}?path={path}").content == name
        told = os.fsdecode(name)
        assert told in _names(client, files)
        assert good(client.get(f"{files}/stat?path={path}"))["name"] == told
        good(post(client, f"{files}/move", {"source": told, "target": told + "-moved"}))
        good(client.delete(f"{files}?path={path}-moved"))
    assert _names(client, files) == []
    odd = {"source": "\ud800", "target": "x"}
    bad(post(client, f"{files}/move", odd), 422, "message_invalid")


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("../x", 403, "path_escapes"),
        ("/etc/passwd", 403, "path_escapes"),
        ("out/passwd", 403, "path_escapes"),
        ("a%00b", 422, "path_invalid"),
        ("none", 404, "path_not_found"),
        ("none/x", 404, "path_not_found"),
        (".", 409, "path_wrong_kind"),
        ("", 422, "message_invalid"),
        ("x&path=y", 422, "message_invalid"),
        ("x" * 5000, 422, "message_invalid"),
    ],
)
def test_paths_that_are_refused(
    client: httpx.Client, space: dict[str, Any], files: str, path: str, status: int, code: str
) -> None:
    link = {"argv": ["ln", "-s", "/etc", "out"]}
    good(client.post(f"/v1/spaces/{space['id']}/exec", json=link))
    bad(client.get(f"{files}?path={path}"), status, code)


def test_writing_out_of_the_tree_is_refused(client: httpx.Client, files: str) -> None:
    for path in ("../x", "/tmp/carrel-escape", "a/../../x"):
        response = client.put(files, params={"path": path}, content=b"x")
        assert response.status_code in (403, 404, 422), response.text
    assert not os.path.exists("/tmp/carrel-escape")
    bad(client.put(files, params={"path": "a", "mode": "9"}, content=b""), 422, "message_invalid")
    bad(client.put(files, content=b""), 422, "message_invalid")
    bad(client.put("/v1/spaces/none/files?path=a", content=b""), 404, "space_not_found")


def _unpacked(data: bytes) -> dict[str, bytes]:
    plain = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read()
    found = {}
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        for entry in archive:
            content = archive.extractfile(entry)
            found[entry.name.removeprefix("./")] = content.read() if content else b""
    return found


def _packed(entries: dict[str, bytes]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, content in entries.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return zstandard.ZstdCompressor().compress(raw.getvalue())


def test_archives_out_and_in(client: httpx.Client, space: dict[str, Any], files: str) -> None:
    archive = f"/v1/spaces/{space['id']}/archive"
    random = os.urandom(BIG)
    for entries in ({"a": b"one", "b/c": b"two"}, {"big": random}):
        folders = {name.partition("/")[0] for name in entries if "/" in name}
        for folder in folders:
            good(client.post(f"{files}/mkdir", json={"path": folder}))
        good(client.put(archive, content=_packed(entries)))
    response = client.get(archive)
    assert response.headers["content-type"] == "application/zstd"
    whole = _unpacked(response.content)
    assert whole["a"] == b"one" and whole["b/c"] == b"two" and whole["big"] == random
    plain = client.get(archive, params={"plain": "true"})
    assert plain.headers["content-type"] == "application/x-tar"
    assert _unpacked(zstandard.ZstdCompressor().compress(plain.content)) == _unpacked(
        response.content
    )
    part = _unpacked(client.get(archive, params={"path": "b"}).content)
    assert [content for content in part.values() if content] == [b"two"]


def test_archives_that_are_refused(client: httpx.Client, space: dict[str, Any]) -> None:
    archive = f"/v1/spaces/{space['id']}/archive"
    bad(client.get(archive, params={"path": "none"}), 404, "path_not_found")
    bad(client.put(archive, content=b"no archive"), 422, "archive_invalid")
    response = client.put(archive, content=_packed({"../escape": b"x"}))
    assert response.status_code in (403, 422), response.text
    assert json.loads(response.text)["code"] in ("path_escapes", "archive_invalid", "path_invalid")
    bad(client.put("/v1/spaces/none/archive", content=b""), 404, "space_not_found")


# What was copied out


def test_a_copy_counts_when_its_client_has_it(
    daemon: Daemon, client: httpx.Client, space: dict[str, Any], files: str
) -> None:
    path = f"/v1/spaces/{space['id']}"
    other = good(client.post("/v1/spaces", json={}))
    stranger = daemon.token(f"space:{space['id']}")

    def left() -> int:
        return int(good(client.get(f"{path}/changes"))["left_files"])

    for name, size in (("empty", 0), ("small", 3), ("big", BIG)):
        good(client.put(files, params={"path": name}, content=bytes(size)))
    taken = {"path": "big", "take": "true"}
    for plain in (
        client.get(files, params={"path": "small"}),
        client.get(files, params=taken, headers={"Range": f"bytes=0-{BIG - 1}"}),
    ):
        assert "carrel-copy" not in plain.headers
    for number, name in enumerate(("empty", "small", "big")):
        ticket = client.get(files, params={**taken, "path": name}).headers["carrel-copy"]
        asked = {"copy": ticket}
        assert left() == 3 - number
        with daemon.tcp(stranger) as one:
            bad(one.post(f"{path}/copied", json=asked), 404, "copy_not_found")
        bad(client.post(f"/v1/spaces/{other['id']}/copied", json=asked), 404, "copy_not_found")
        good(client.post(f"{path}/copied", json=asked))
        assert left() == 2 - number
        bad(client.post(f"{path}/copied", json=asked), 404, "copy_not_found")
    good(client.put(files, params={"path": "small"}, content=b"new"))
    archive = client.get(f"{path}/archive")
    assert left() == 1
    good(client.post(f"{path}/copied", json={"copy": archive.headers["carrel-copy"]}))
    assert left() == 0
    good(client.delete(f"/v1/spaces/{other['id']}"))


def test_a_copy_that_broke_off_does_not_count(
    client: httpx.Client, space: dict[str, Any], files: str
) -> None:
    good(client.put(files, params={"path": "big"}, content=bytes(16 << 20)))
    asked = {"path": "big", "take": "true"}
    with client.stream("GET", files, params=asked) as answer:
        ticket = answer.headers["carrel-copy"]
    bad(
        client.post(f"/v1/spaces/{space['id']}/copied", json={"copy": ticket}),
        404,
        "copy_not_found",
    )
