"""What is taken from the caches of spaces, and what is not; whole installations are in
tests/service/test_downloads.py."""

from __future__ import annotations

import gzip
import hashlib
import os
import time
from math import inf
from pathlib import Path

import msgspec
import pytest

from carrel.domain.projects import Project, ProjectKind
from carrel.domain.trees import Base, Owner
from carrel.trees import download_caches
from carrel.trees.download_caches import (
    CARGO,
    NPM,
    PIP,
    SHOWN_AT,
    SPLIT,
    WHOLE,
    DownloadCaches,
)

KEY = "ab" * 16
HOST = "https://files.example.org"


@pytest.fixture
def caches(tmp_path: Path) -> DownloadCaches:
    return DownloadCaches(tmp_path / "downloads", 1 << 30, lambda: False)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def put_npm(home: Path, content: bytes, name: bytes = b"") -> Path:
    digest = hashlib.sha512(name or content).hexdigest()
    path = home / NPM / digest[:2] / digest[2:4] / digest[4:]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def address(content: bytes, name: str = "hello-1.0-py3-none-any.whl") -> str:
    digest = hashlib.blake2b(content, digest_size=32).hexdigest()
    return f"{HOST}/packages/{digest[:2]}/{digest[2:4]}/{digest[4:]}/{name}"


def put_pip(home: Path, kind: str, url: str, body: bytes) -> Path:
    """As pip keeps an answer."""
    name = hashlib.sha224(url.encode()).hexdigest()
    path = home / PIP / kind / "/".join(name[:5]) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    response = {"body": body if kind == WHOLE else b"", "headers": {"x": "y"}, "status": 301}
    path.write_bytes(b"cc=4," + msgspec.msgpack.encode({"response": response, "vary": {}}))
    if kind == SPLIT:
        path.with_name(f"{name}.body").write_bytes(body)
    return path


REGISTRY = "index.example-1949cf8c6b5b557f"


def put_crate(home: Path, content: bytes, file: str = f"{REGISTRY}/hello-1.0.0.crate") -> Path:
    path = home / CARGO / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def base_with(folder: Path, **locks: bytes) -> Base:
    """A lock file in each of these folders, by the content of the crate that it names."""
    for name, content in locks.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "Cargo.lock").write_text(
            "version = 4\n\n[[package]]\n"
            'name = "hello"\nversion = "1.0.0"\nsource = "registry+https://index.example.org/"\n'
            f'checksum = "{hashlib.sha256(content).hexdigest()}"\n\n'
            '[[package]]\nname = "own"\nversion = "0.1.0"\ndependencies = [\n "hello",\n]\n'
        )
    owner, project = Owner(os.geteuid(), os.getegid()), Project(ProjectKind.FOLDER, str(folder))
    return Base("ba_1", project, folder, (folder,), 1, 1, 0.0, owner, owner)


def page(*urls: str) -> bytes:
    links = "".join(f'<a href="{url}#sha256=00">x</a>' for url in urls)
    return f"<!DOCTYPE html><html>{links}</html>".encode()


def read(caches: DownloadCaches, target: str) -> bytes:
    return (caches.folder / KEY / target.removeprefix(f"{SHOWN_AT}/")).read_bytes()


def test_npm_has_what_its_name_says(caches: DownloadCaches, home: Path) -> None:
    good = gzip.compress(b"good")
    path = put_npm(home, good)
    put_npm(home, gzip.compress(b"evil"), name=gzip.compress(b"wanted"))
    put_npm(home, b'{"what": "an index says"}')
    put_npm(home, good, name=b"link").unlink()
    other = put_npm(home, gzip.compress(b"outside"), name=b"outside")
    other.rename(home / "outside")
    other.symlink_to(home / "outside")
    (home / NPM / "zz" / "zz").mkdir(parents=True)
    os.mkfifo(home / NPM / "zz" / "zz" / "fifo")
    links = caches.links(KEY, {home: inf})
    assert list(links) == [str(path.relative_to(home))]
    assert read(caches, links[str(path.relative_to(home))]) == good
    # What is there stays, whatever becomes of the space.
    path.write_bytes(gzip.compress(b"evil"))
    assert caches.links(KEY, {home: inf}) == links
    assert read(caches, links[str(path.relative_to(home))]) == good
    assert caches.links("cd" * 16) == {}


@pytest.mark.parametrize("kind", [WHOLE, SPLIT])
@pytest.mark.parametrize("packed", [False, True])
def test_pip_has_what_its_address_says(
    caches: DownloadCaches, home: Path, kind: str, packed: bool
) -> None:
    body = b"PK" + os.urandom(70_000)
    path = put_pip(home, kind, address(body), body)
    put_pip(home, kind, address(b"PK wanted"), b"PK evil")
    put_pip(home, kind, address(b"PK unheard of"), b"PK unheard of")
    plain = f"{HOST}/packages/hello-1.0-py3-none-any.whl"
    put_pip(home, kind, plain, b"PK whatever")
    beside = [
        f"{address(body)}{more}" for more in (".metadata", ".asc", ".provenance", "-x", "%20")
    ]
    for url in beside:
        # The digest in it is that of another file.
        put_pip(home, kind, url, body)
    index = page(address(body), address(b"PK wanted"), plain, *beside)
    put_pip(home, kind, f"{HOST}/simple/hello/", gzip.compress(index) if packed else index)
    links = caches.links(KEY, {home: inf})
    found = str(path.relative_to(home))
    assert sorted(links) == sorted({found, found if kind == WHOLE else f"{found}.body"})
    answer = read(caches, links[found])
    assert answer.startswith(b"cc=4,")
    response = msgspec.msgpack.decode(answer[5:])["response"]
    # Nothing of it is what the space wrote beside the file.
    assert response["status"] == 200 and "x" not in response["headers"]
    assert response["headers"]["Content-Length"] == str(len(body))
    assert (response["body"] if kind == WHOLE else read(caches, links[f"{found}.body"])) == body


def test_cargo_has_what_lock_files_of_the_project_say(
    caches: DownloadCaches, home: Path, tmp_path: Path
) -> None:
    good = gzip.compress(b"good")
    hostile, other = tmp_path / "hostile", tmp_path / "other"
    # Who comes first has no advantage.
    put_crate(hostile, gzip.compress(b"evil"))
    path = put_crate(home, good)
    put_crate(home, good, "noregistry/hello-1.0.0.crate")
    put_crate(home, good, f"{REGISTRY}/hello=1.0.0.crate")
    put_crate(other, good, f"{REGISTRY}/linked-1.0.0.crate").unlink()
    (other / CARGO / REGISTRY / "linked-1.0.0.crate").symlink_to(path)
    homes = dict.fromkeys((hostile, home, other), inf)
    assert caches.links(KEY, homes) == {}
    base = base_with(tmp_path / "base", app=good, another=good)
    links = caches.links(KEY, {}, base)
    assert list(links) == [str(path.relative_to(home))]
    assert read(caches, *links.values()) == good
    assert caches.links(KEY, {}, base_with(tmp_path / "else", app=gzip.compress(b"else"))) == {}
    several = {"app": good, "another": gzip.compress(b"evil")}
    assert caches.links(KEY, {}, base_with(tmp_path / "both", **several)) == {}


def test_a_crate_stays_as_long_as_somebody_has_a_link_to_it(home: Path, tmp_path: Path) -> None:
    """Through a link that leads nowhere, cargo writes, and fails."""
    caches = DownloadCaches(tmp_path / "downloads", 4000, lambda: False)
    put_crate(home, crate := bytes(800))
    put_npm(home, b"\x1f\x8b" + bytes(180))
    base = base_with(tmp_path / "base", app=crate)
    assert len(caches.links(KEY, {home: inf}, base)) == 2
    (action,) = caches.tidy({KEY}, everything=True, dry_run=False)
    assert action.bytes_freed == 182
    (left,) = caches.links(KEY, {}, base)
    assert left.startswith(CARGO)
    caches.tidy((), everything=True, dry_run=False)
    assert caches.links(KEY, {}, base) == {}


def test_what_takes_long_is_given_up(
    caches: DownloadCaches, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_pip(home, SPLIT, f"{HOST}/simple/", b"<" + b"http://a/" * 1_000_000)
    put_pip(home, SPLIT, f"{HOST}/bomb/", gzip.compress(b"<" + bytes(100 << 20)))
    (home / PIP / WHOLE).mkdir()
    (home / PIP / WHOLE / "0").symlink_to("0")
    began = time.process_time()
    assert caches.links(KEY, {home: inf}) == {}
    assert time.process_time() - began < 2 * download_caches.LOOK_S
    put_npm(home, gzip.compress(b"good"))
    # Not again at once; in its own time.
    assert caches.links(KEY, {home: inf}) == {}
    monkeypatch.setattr(caches, "_looks", {})
    assert len(caches.links(KEY, {home: inf})) == 1


def test_a_home_in_which_nothing_ran_is_not_looked_at_again(
    caches: DownloadCaches, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download_caches, "RARELY", 0)
    assert caches.links(KEY, {home: 0.0}) == {}
    put_npm(home, gzip.compress(b"good"))
    assert caches.links(KEY, {home: 0.0}) == {}
    assert len(caches.links(KEY, {home: inf})) == 1


def test_there_is_a_bound(home: Path, tmp_path: Path) -> None:
    caches = DownloadCaches(tmp_path / "downloads", 4000, lambda: False)
    for number in range(9):
        put_npm(home, b"\x1f\x8b" + bytes([number]) * 240)
    links = caches.links(KEY, {home: inf})
    assert len(links) == 4
    assert caches.tidy({KEY}, everything=True, dry_run=True)[0].bytes_freed == 726
    (action,) = caches.tidy({KEY}, everything=True, dry_run=False)
    assert "full" in action.why and len(caches.links(KEY)) == 1
    full = DownloadCaches(tmp_path / "full", 1 << 30, lambda: True)
    assert full.links(KEY, {home: inf}) == {}
    # What nobody uses goes with time, or for others.
    assert caches.tidy((), everything=False, dry_run=False) == []
    os.utime(caches.folder / KEY, (0, 0))
    assert [one.target for one in caches.tidy((), everything=False, dry_run=False)] == [KEY]
    assert list(caches.folder.iterdir()) == []


def test_what_was_never_completed_is_not_shown(caches: DownloadCaches, home: Path) -> None:
    """The machine went down while it was written."""
    path = put_npm(home, gzip.compress(b"good"))
    (target,) = caches.links(KEY, {home: inf}).values()
    kept = caches.folder / KEY / Path(target).name
    kept.chmod(0o600)
    kept.write_bytes(b"")
    draft = caches.folder / KEY / ".draft"
    draft.write_bytes(b"half")
    os.utime(draft, (0, 0))
    assert caches.links(KEY) == {} and list((caches.folder / KEY).iterdir()) == []
    path.unlink()
