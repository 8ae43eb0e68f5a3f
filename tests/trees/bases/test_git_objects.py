"""Git objects are named by their content: what only touches them costs nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from carrel.domain.trees import Base
from carrel.trees.bases import folder_base
from carrel.trees.bases.entries import Copier, WantedEntry
from carrel.trees.bases.store import BaseStore
from tests.trees.bases.helpers import picture, request, shown, write
from tests.trees.git.repositories import commit, git, make_repository


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """With a pack and with loose objects."""
    folder = make_repository(tmp_path / "repository")
    for number in range(20):
        write(folder / f"files/{number}", str(number))
    commit(folder, "more")
    git(folder, "gc", "-q")
    write(folder / "a.txt", "loose\n")
    commit(folder, "loose")
    return folder


@pytest.fixture
def looked_into(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of git objects that were read to compare them with what is stored."""
    found: list[str] = []
    digest = Copier.digest

    def noting(self: Copier, wanted: WantedEntry, mode: int) -> bytes:
        if b"/objects/" in wanted.path and b"/info/" not in wanted.path:
            found.append(os.fsdecode(wanted.name))
        return digest(self, wanted, mode)

    monkeypatch.setattr(Copier, "digest", noting)
    return found


def same_but_for_the_index(base: Base, repository: Path) -> bool:
    """A base has an index of its own."""
    there, here = shown(base), picture(repository)
    there.pop(b".git/index")
    here.pop(b".git/index")
    return there == here


def pack(repository: Path) -> Path:
    (found,) = repository.glob(".git/objects/pack/*.pack")
    return found


def test_a_local_clone_reads_nothing_again(
    store: BaseStore, repository: Path, tmp_path: Path, looked_into: list[str]
) -> None:
    first = store.build(request(repository))
    git(tmp_path, "clone", "-q", "--local", str(repository), "clone")
    assert pack(repository).stat().st_nlink == 2
    assert store.build(request(repository)).base_id == first.base_id
    write(repository / "new", "x")
    second = store.build(request(repository))
    assert looked_into == []
    assert same_but_for_the_index(second, repository)
    # And when the clone is gone.
    shutil.rmtree(tmp_path / "clone")
    assert store.build(request(repository)).base_id == second.base_id
    assert looked_into == []


def test_a_clone_in_the_project_itself(store: BaseStore, repository: Path) -> None:
    """Its objects are further names of files that are stored already."""
    store.build(request(repository))
    git(repository, "clone", "-q", "--local", ".", "inner")
    base = store.build(request(repository))
    seen = shown(base)
    assert seen.keys() == picture(repository).keys()
    name = os.fsencode(pack(repository).relative_to(repository))
    assert seen[b"inner/" + name].content == seen[name].content


def test_an_object_that_is_another_file_is_read(
    store: BaseStore, repository: Path, looked_into: list[str]
) -> None:
    store.build(request(repository))
    path = pack(repository)
    status = path.stat()
    broken = bytearray(path.read_bytes())
    broken[-1] ^= 1
    other = write(path.with_name("other"), bytes(broken))
    other.chmod(status.st_mode & 0o777)
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.rename(path)
    assert same_but_for_the_index(store.build(request(repository)), repository)
    assert looked_into == [path.name]


def test_a_touched_pack_is_read_once(
    store: BaseStore, repository: Path, looked_into: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_base, "_AS_MUCH_AS_A_FILE", 1)
    first = store.build(request(repository))
    os.utime(pack(repository), (1_700_000_000, 1_700_000_000))
    for _ in range(3):
        assert store.build(request(repository)).base_id == first.base_id
    assert looked_into == [pack(repository).name]
