"""Folders as archives and back, and what a hostile archive cannot do."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.client.archives import leads_out, pack, unpack
from carrel.domain.errors import ArchiveInvalid, PathWrongKind
from carrel.domain.tar import END, TarReader, pack_header

ODD = os.fsdecode(b"b\xffad\nname")
Skips = list[tuple[str, str]]


def fill(folder: Path) -> None:
    (folder / "sub" / "deep").mkdir(parents=True)
    (folder / "sub" / "deep" / "file").write_bytes(b"x" * 600_000)
    (folder / "empty").mkdir()
    (folder / "none").touch()
    (folder / ODD).write_text("odd")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o751)
    (folder / "inside").symlink_to("sub/deep/file")
    (folder / "sub" / "up").symlink_to("../none")
    os.utime(folder / "run.sh", (1_000_000, 1_000_000))
    (folder / "sub").chmod(0o500)


def shape(folder: Path) -> dict[str, object]:
    """All that should come through."""
    found: dict[str, object] = {}
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(parent, name)
            status = os.lstat(path)
            where = os.path.relpath(path, folder)
            if stat.S_ISLNK(status.st_mode):
                found[where] = os.readlink(path)
            elif stat.S_ISREG(status.st_mode):
                found[where] = (status.st_mode, int(status.st_mtime), Path(path).read_bytes())
            else:
                found[where] = status.st_mode
    return found


@pytest.fixture
def places(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    yield source, target
    for parent, folders, _ in os.walk(tmp_path):
        for name in folders:
            if not os.path.islink(os.path.join(parent, name)):
                os.chmod(os.path.join(parent, name), 0o700)


def test_a_folder_comes_back_as_it_was(places: tuple[Path, Path]) -> None:
    source, target = places
    fill(source)
    skipped: Skips = []
    pieces = pack(str(source), "", lambda path, why: skipped.append((path, why)))
    unpack(pieces, str(target), ("", ""), lambda *_: None)
    assert shape(target) == shape(source)
    assert skipped == []


@pytest.mark.parametrize("umask", [0o022, 0o027, 0])
def test_modes_are_those_of_the_archive(places: tuple[Path, Path], umask: int) -> None:
    """But for those whom the umask lets write nothing."""
    source, target = places
    modes = (0o644, 0o664, 0o755, 0o600, 0o444, 0o666, 0)
    (source / "folder").mkdir()
    (source / "folder").chmod(0o777)
    for mode in modes:
        (source / f"{mode:o}").write_text("x")
        (source / f"{mode:o}").chmod(mode)
    before = os.umask(umask)
    try:
        pieces = pack(str(source), "", lambda *_: None, plain=True)
        unpack(pieces, str(target), ("", ""), lambda *_: None)
    finally:
        os.umask(before)
    others = ~(umask & 0o022)
    for mode in modes:
        assert stat.S_IMODE((target / f"{mode:o}").stat().st_mode) == mode & others
    assert stat.S_IMODE((target / "folder").stat().st_mode) == 0o777 & others


def test_deep_folders_in_any_order(places: tuple[Path, Path]) -> None:
    _, target = places
    descriptors = len(os.listdir("/proc/self/fd"))
    deep = "/".join(f"d{level}" for level in range(40))
    depths = [1, 40, 39, 17, 16, 15, 18, 40, 2, 16, 17, 0, 40]
    folders = ["/".join(deep.split("/")[:depth]) for depth in depths]
    folders += [f"{folder}/beside" for folder in folders if folder]
    names = [f"{folder}/{number}".lstrip("/") for number, folder in enumerate(folders)]
    parts = [pack_header(name, tarfile.REGTYPE, 0o644, 0, size=len(name)) for name in names]
    bodies = [name.encode().ljust(-(-len(name) // 512) * 512, b"\0") for name in names]
    archive = b"".join(head + body for head, body in zip(parts, bodies, strict=True)) + END
    unpack([archive], str(target), ("", ""), lambda *_: None)
    assert all((target / name).read_text() == name for name in names)
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_under_another_name(places: tuple[Path, Path]) -> None:
    source, target = places
    fill(source)
    pieces = pack(str(source), "old", lambda *_: None)
    unpack(pieces, str(target), ("old", "new"), lambda *_: None)
    assert os.listdir(target) == ["new"]
    assert shape(target / "new") == shape(source)


def test_what_is_there_is_replaced_and_merged(places: tuple[Path, Path]) -> None:
    source, target = places
    (source / "a").write_text("new")
    (source / "f").mkdir()
    (source / "f" / "b").symlink_to("../a")
    (target / "a").write_text("old")
    (target / "f").mkdir()
    (target / "f" / "b").write_text("old")
    (target / "f" / "kept").write_text("kept")
    (source / "f").chmod(0o707)
    (target / "f").chmod(0o750)
    unpack(pack(str(source), "", lambda *_: None), str(target), ("", ""), lambda *_: None)
    # Else what is in a space would open or close a folder that was not copied from there.
    assert stat.S_IMODE((target / "f").stat().st_mode) == 0o750
    assert (target / "a").read_text() == "new"
    assert os.readlink(target / "f" / "b") == "../a"
    assert (target / "f" / "kept").read_text() == "kept"


def test_what_cannot_be_sent_is_left_out_and_told(places: tuple[Path, Path]) -> None:
    source, target = places
    os.mkfifo(source / "pipe")
    (source / "out").symlink_to("/etc/passwd")
    (source / "above").symlink_to("../x")
    (source / "file").write_text("x")
    skipped: Skips = []
    pieces = pack(str(source), "", lambda path, why: skipped.append((path, why)))
    unpack(pieces, str(target), ("", ""), lambda *_: None)
    assert os.listdir(target) == ["file"]
    assert sorted(os.path.basename(path) for path, _ in skipped) == ["above", "out", "pipe"]


def test_a_file_that_shrinks_while_it_is_sent_spoils_nothing(places: tuple[Path, Path]) -> None:
    source, target = places
    (source / "a").write_bytes(b"x" * 3_000_000)
    (source / "b").write_text("whole")
    pieces = pack(str(source), "", lambda *_: None)
    first = next(iter(pieces))
    os.truncate(source / "a", 10)
    unpack(_chained(first, pieces), str(target), ("", ""), lambda *_: None)
    assert (target / "a").stat().st_size == 3_000_000
    assert (target / "b").read_text() == "whole"


def test_a_folder_that_becomes_a_symlink_while_it_is_sent_leads_nowhere(
    places: tuple[Path, Path], tmp_path: Path
) -> None:
    source, target = places
    (source / "sub").mkdir()
    (source / "sub" / "a").write_bytes(os.urandom(600_000))
    (source / "sub" / "b").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "b").write_text("secret")
    pieces = pack(str(source), "", lambda *_: None)
    first = next(iter(pieces))
    (source / "sub").rename(source / "away")
    (source / "sub").symlink_to(tmp_path / "elsewhere")
    unpack(_chained(first, pieces), str(target), ("", ""), lambda *_: None)
    assert (target / "sub" / "b").read_text() == "mine"


@given(
    name=st.text("abé", min_size=1, max_size=130),
    target=st.text("abé", max_size=130),
    size=st.sampled_from((0, 1, 8**11 - 1, 8**11)),
    mtime_ns=st.integers(-(10**18), 10**20 - 1),
)
def test_headers_are_those_of_tarfile(name: str, target: str, size: int, mtime_ns: int) -> None:
    info = tarfile.TarInfo(name)
    info.mode, info.size, info.linkname, info.mtime = 0o640, size, target, mtime_ns // 10**9
    whole = pack_header(
        name, tarfile.REGTYPE, 0o640, mtime_ns // 10**9 * 10**9, size=size, target=target
    )
    assert whole == info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    exact = pack_header(name, tarfile.SYMTYPE, 0o640, mtime_ns, target=target)
    with tarfile.open(fileobj=io.BytesIO(exact + END)) as archive:
        [read] = archive.getmembers()
    assert (read.name, read.linkname, read.mode) == (name, target, 0o640)
    [member] = TarReader(io.BytesIO(exact + END))
    assert (os.fsdecode(member.name), os.fsdecode(member.target)) == (name, target)
    assert (member.mode, member.mtime_ns) == (0o640, mtime_ns)


def _chained(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> list[bytes]:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return [zstandard.ZstdCompressor().compress(held.getvalue())]


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize("name", ["../out", "/etc/out", "a/../../out", "a/.."])
def test_names_that_lead_out_are_refused(places: tuple[Path, Path], name: str) -> None:
    _, target = places
    with pytest.raises(ArchiveInvalid, match="outside of the folder"):
        unpack(archive((member(name), b"x")), str(target), ("", ""), lambda *_: None)
    assert os.listdir(target) == []


@pytest.mark.parametrize("becomes", ["old", "new"])
@pytest.mark.parametrize(
    "entry",
    [
        member(".bashrc"),
        member("./.bashrc"),
        member(".ssh", tarfile.DIRTYPE),
        member("older/x"),
        member(".", tarfile.DIRTYPE),
        member("key", tarfile.LNKTYPE, "old/ok"),
        member("old/key", tarfile.LNKTYPE, ".bashrc"),
        member("rc", tarfile.SYMTYPE, "old/ok"),
    ],
    ids=lambda info: f"{info.name}-{info.type.decode()}",
)
def test_nothing_is_put_beside_the_copied_folder(
    places: tuple[Path, Path], becomes: str, entry: tarfile.TarInfo
) -> None:
    """A daemon that lies has other folders packed than the one that was asked for."""
    _, target = places
    (target / ".bashrc").write_text("mine")
    packed = archive((member("old", tarfile.DIRTYPE), b""), (member("old/ok"), b""), (entry, b""))
    with pytest.raises(ArchiveInvalid, match="outside of 'old'"):
        unpack(packed, str(target), ("old", becomes), lambda *_: None)
    assert sorted(os.listdir(target)) == [".bashrc", becomes]
    assert os.listdir(target / becomes) == ["ok"] and (target / ".bashrc").read_text() == "mine"


def test_no_symlink_is_followed(places: tuple[Path, Path]) -> None:
    """Neither one of the archive, nor one that stands there."""
    source, target = places
    own = archive(
        (member("sub", tarfile.DIRTYPE), b""),
        (member("link", tarfile.SYMTYPE, "sub"), b""),
        (member("link/x"), b"x"),
    )
    with pytest.raises(PathWrongKind):
        unpack(own, str(target), ("", ""), lambda *_: None)
    (target / "theirs").symlink_to(source)
    with pytest.raises(PathWrongKind):
        unpack(archive((member("theirs/x"), b"x")), str(target), ("", ""), lambda *_: None)
    unpack(archive((member("theirs"), b"mine")), str(target), ("", ""), lambda *_: None)
    assert (target / "theirs").read_text() == "mine"
    assert os.listdir(source) == []


def test_links_that_lead_out_and_devices_are_left_out(places: tuple[Path, Path]) -> None:
    _, target = places
    skipped: Skips = []
    unpack(
        archive(
            (member("passwd", tarfile.SYMTYPE, "/etc/passwd"), b""),
            (member("up", tarfile.SYMTYPE, "../../x"), b""),
            (member("null", tarfile.CHRTYPE), b""),
            (member("pipe", tarfile.FIFOTYPE), b""),
        ),
        str(target),
        ("", ""),
        lambda path, why: skipped.append((path, why)),
    )
    assert os.listdir(target) == []
    assert [path for path, _ in skipped] == ["passwd", "up", "null", "pipe"]


def test_links_to_what_is_around_the_copied_folder_are_left_out(places: tuple[Path, Path]) -> None:
    """A folder that is copied as `~/new` has nothing to do with the rest of `~`."""
    _, target = places
    skipped: list[str] = []
    unpack(
        archive(
            (member("old/beside", tarfile.SYMTYPE, "../.bashrc"), b""),
            (member("old/up", tarfile.SYMTYPE, ".."), b""),
            (member("old/sub/far", tarfile.SYMTYPE, "../../.ssh"), b""),
            (member("old/sub/near", tarfile.SYMTYPE, "../file"), b""),
        ),
        str(target),
        ("old", "new"),
        lambda path, _: skipped.append(path),
    )
    assert skipped == ["old/beside", "old/up", "old/sub/far"]
    assert os.readlink(target / "new/sub/near") == "../file"


def test_hard_links_stay_within(places: tuple[Path, Path]) -> None:
    source, target = places
    (source / "secret").write_text("secret")
    (target / "way").symlink_to(source / "secret")
    unpack(
        archive((member("a"), b"x"), (member("b", tarfile.LNKTYPE, "a"), b"")),
        str(target),
        ("", ""),
        lambda *_: None,
    )
    assert (target / "b").samefile(target / "a")
    for name in ("../source/secret", "way", "missing"):
        with pytest.raises((ArchiveInvalid, FileNotFoundError)):
            unpack(
                archive((member("c", tarfile.LNKTYPE, name), b"")),
                str(target),
                ("", ""),
                lambda *_: None,
            )


def test_a_folder_is_not_replaced_by_a_file(places: tuple[Path, Path]) -> None:
    _, target = places
    (target / "a").mkdir()
    with pytest.raises(PathWrongKind, match="folder"):
        unpack(archive((member("a"), b"x")), str(target), ("", ""), lambda *_: None)


@pytest.mark.parametrize("spoil", [lambda d: d[:-20], lambda d: b"no zstd" + d, lambda d: d[:4]])
def test_a_damaged_archive_is_told(places: tuple[Path, Path], spoil: object) -> None:
    assert callable(spoil)
    _, target = places
    [data] = archive((member("a"), os.urandom(5000)), (member("b"), b"x" * 100))
    with pytest.raises(ArchiveInvalid, match=r"damaged|ends in the middle"):
        unpack([spoil(data)], str(target), ("", ""), lambda *_: None)


@settings(deadline=None)
@given(st.lists(st.sampled_from(["..", ".", "a", "b", ""]), max_size=6), st.integers(0, 3))
def test_what_leads_out_is_known(parts: list[str], depth: int) -> None:
    """Never less strict than where the path really goes."""
    name = "/".join(["d"] * depth + ["link"])
    target = "/".join(parts)
    outside = os.path.normpath(os.path.join("/root", os.path.dirname(name), target or ".."))
    if not outside.startswith("/root") or target.startswith("/"):
        assert leads_out(name, target)
