"""Names, sizes and links that simple copies get wrong."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from carrel.trees.bases.store import BaseStore
from carrel.trees.paths import open_folder
from tests.trees.bases.helpers import iter_entries, listed, mounted, picture, request, shown, write

MIB = 1 << 20


@pytest.mark.parametrize(
    "name",
    [
        b"new\nline",
        b"not \xff\xfe utf-8",
        b"x" * 255,
        "ünïcödé 🗂".encode(),
        b" leading and trailing ",
        b"-rf",
        b"*?[a]",
        b"back\\slash",
        b"tab\tand\x01control",
        b".wh.fake",
    ],
)
def test_odd_names(store: BaseStore, project: Path, name: bytes) -> None:
    top = os.fsencode(project)
    os.mkdir(os.path.join(top, name))
    for path in (os.path.join(name, name), b"src/" + name):
        with open(os.path.join(top, path), "wb") as file:
            file.write(name)
    os.symlink(name, os.path.join(top, name, b"link"))
    base = store.build(request(project))
    assert shown(base) == listed(base) == picture(project)
    os.unlink(os.path.join(top, name, name))
    with open(os.path.join(top, b"src", name), "ab") as file:
        file.write(b"more")
    second = store.build(request(project))
    assert shown(second) == listed(second) == picture(project)


def test_paths_longer_than_the_kernel_takes(store: BaseStore, project: Path) -> None:
    name = b"d" * 200
    fd = os.open(project, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for _ in range(30):
            os.mkdir(name, dir_fd=fd)
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = below
        _write_at(fd, b"bottom", b"deep down")
        _write_at(fd, b"other", b"also")
        os.symlink(b"bottom", b"link", dir_fd=fd)
        base = store.build(request(project))
        deep = b"/".join([name] * 30)
        assert _read_in(base.layers[0], deep, b"bottom") == b"deep down"
        assert store.build(request(project)).base_id == base.base_id
        _write_at(fd, b"bottom", b"changed")
        os.unlink(b"other", dir_fd=fd)
    finally:
        os.close(fd)
    second = store.build(request(project))
    assert _read_in(second.layers[0], deep, b"bottom") == b"changed"
    paths = [entry.path for entry in iter_entries(second)]
    assert deep + b"/bottom" in paths
    assert deep + b"/other" not in paths
    store.remove(second.base_id)
    store.remove(base.base_id)
    assert store.list() == []


def _write_at(folder: int, name: bytes, content: bytes) -> None:
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644, dir_fd=folder)
    os.write(fd, content)
    os.close(fd)


def _read_in(layer: Path, folder: bytes, name: bytes) -> bytes:
    root = os.open(layer, os.O_RDONLY | os.O_DIRECTORY)
    inner = open_folder(root, folder)
    file = os.open(name, os.O_RDONLY, dir_fd=inner)
    try:
        return os.read(file, 1000)
    finally:
        for fd in (file, inner, root):
            os.close(fd)


def test_sparse_files_stay_sparse(store: BaseStore, project: Path) -> None:
    path = project / "disk.img"
    with path.open("wb") as file:
        file.truncate(1 << 40)
        file.seek(3 * MIB)
        file.write(b"data in the middle")
        file.seek((1 << 40) - 5)
        file.write(b"last!")
    base = store.build(request(project))
    kept = base.layers[0] / "disk.img"
    assert kept.stat().st_size == 1 << 40
    assert kept.stat().st_blocks * 512 < MIB
    with kept.open("rb") as stored:
        stored.seek(3 * MIB)
        assert stored.read(18) == b"data in the middle"
        stored.seek((1 << 40) - 5)
        assert stored.read() == b"last!"
    with path.open("r+b") as file:
        file.seek(9 * MIB)
        file.write(b"more")
    second = store.build(request(project))
    assert second.base_id != base.base_id
    with (second.layers[0] / "disk.img").open("rb") as stored:
        stored.seek(9 * MIB)
        assert stored.read(4) == b"more"


def test_big_files_are_whole(store: BaseStore, project: Path) -> None:
    content = os.urandom(MIB) * 20 + b"end"
    write(project / "big", content)
    base = store.build(request(project))
    assert (base.layers[0] / "big").read_bytes() == content


def test_hard_links_stay_linked(store: BaseStore, project: Path) -> None:
    write(project / "one", "shared")
    os.link(project / "one", project / "src/two")
    os.link(project / "one", project / "src/app/three")
    base = store.build(request(project))
    layer = base.layers[0]
    assert (layer / "one").stat().st_nlink == 3
    assert os.path.samefile(layer / "one", layer / "src/two")
    groups = {entry.path: entry.link_group for entry in iter_entries(base) if entry.link_group}
    assert groups == dict.fromkeys((b"one", b"src/two", b"src/app/three"), b"one")

    write(project / "one", "changed in place")
    second = store.build(request(project))
    with mounted(second) as view:
        assert os.path.samefile(view / "one", view / "src/two")
        assert (view / "src/app/three").read_text() == "changed in place"

    (project / "src/two").unlink()
    third = store.build(request(project))
    assert shown(third) == picture(project)
    with mounted(third) as view:
        assert os.path.samefile(view / "one", view / "src/app/three")


def test_a_link_that_is_broken_up_is_two_files(store: BaseStore, project: Path) -> None:
    write(project / "one", "shared")
    os.link(project / "one", project / "two")
    first = store.build(request(project))
    os.system(f"cd {project} && cp -a two three && mv three two")
    second = store.build(request(project))
    assert second.base_id != first.base_id
    with mounted(second) as view:
        assert not os.path.samefile(view / "one", view / "two")
    assert shown(second) == picture(project)


def test_links_to_files_outside_are_plain_files(
    store: BaseStore, project: Path, tmp_path: Path
) -> None:
    write(tmp_path / "outside", "shared with outside")
    os.link(tmp_path / "outside", project / "inside")
    base = store.build(request(project))
    assert (base.layers[0] / "inside").stat().st_nlink == 1


def test_extended_attributes_of_the_user_are_kept(store: BaseStore, project: Path) -> None:
    os.setxattr(project / "README", "user.note", b"\x00binary")
    os.setxattr(project / "src", "user.folder", b"f")
    os.setxattr(project / "README", "user.overlay.opaque", b"y")
    os.setxattr(project / "README", "trusted.overlay.metacopy", b"")
    base = store.build(request(project))
    layer = base.layers[0]
    assert os.getxattr(layer / "README", "user.note") == b"\x00binary"
    assert os.getxattr(layer / "src", "user.folder") == b"f"
    assert os.listxattr(layer / "README") == ["user.note"]
    os.setxattr(project / "README", "user.note", b"changed")
    second = store.build(request(project))
    assert second.base_id != base.base_id
    with mounted(second) as view:
        assert os.getxattr(view / "README", "user.note") == b"changed"
    write(project / "src/app/util.py", "changed below the folder")
    with mounted(store.build(request(project))) as view:
        assert os.getxattr(view / "src", "user.folder") == b"f"


def test_folders_without_permissions(store: BaseStore, project: Path) -> None:
    write(project / "closed/inner/file", "x")
    (project / "closed/inner").chmod(0o000)
    (project / "closed").chmod(0o111)
    write(project / "secret", "x").chmod(0o000)
    base = store.build(request(project))
    assert shown(base) == picture(project)
    (project / "closed/inner/file").write_text("changed")
    second = store.build(request(project))
    assert shown(second) == picture(project)
    assert stat.S_IMODE((second.layers[0] / "closed").stat().st_mode) == 0o111


def test_times_before_1970_and_far_ahead(store: BaseStore, project: Path) -> None:
    os.utime(project / "README", ns=(0, -1_500_000_000))
    os.utime(project / ".env", ns=(0, 6_000_000_000_123_456_789))
    base = store.build(request(project))
    assert shown(base) == picture(project)
    assert store.build(request(project)).base_id == base.base_id
