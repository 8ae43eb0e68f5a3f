"""Bases of tar and zip archives, and archives that mean harm."""

from __future__ import annotations

import gzip
import io
import os
import stat
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from carrel.domain.errors import (
    ArchiveInvalid,
    CarrelError,
    InsufficientDisk,
    ProjectInvalid,
    ProjectNotAFolder,
    ProjectNotFound,
    ProjectTooLarge,
)
from carrel.domain.projects import BaseRequest, Project, ProjectKind
from carrel.trees.bases.store import BaseStore
from carrel.trees.sources.archive import is_archive
from tests.trees.bases.helpers import left_in_staging, picture, shown, write

TAR_TIMEOUT_S = 30.0
OPTIONS = {
    "tar": "",
    "tar.gz": "--gzip",
    "tar.bz2": "--bzip2",
    "tar.xz": "--xz",
    "tar.zst": "--zstd",
}


def of(path: Path, **options: object) -> BaseRequest:
    return BaseRequest(Project(ProjectKind.ARCHIVE, str(path)), **options)  # type: ignore[arg-type]


def pack(project: Path, archive: Path, option: str) -> Path:
    words = ["tar", "--create", "--format=pax", "--sparse", *option.split(), "-C", str(project)]
    subprocess.run([*words, "-f", str(archive), "."], check=True, timeout=TAR_TIMEOUT_S)
    return archive


@pytest.mark.parametrize("kind", OPTIONS)
def test_every_kind_of_tar(store: BaseStore, project: Path, tmp_path: Path, kind: str) -> None:
    (project / "nowhere").unlink()
    os.link(project / "README", project / "src/linked")
    with (project / "sparse").open("wb") as file:
        file.truncate(50 << 20)
        file.seek(20 << 20)
        file.write(b"middle")
    name = os.fsencode(project) + b"/odd \xff name\n"
    os.symlink(b"README", name)
    archive = pack(project, tmp_path / f"project.{kind}", OPTIONS[kind])
    assert is_archive(archive)
    base = store.build(of(archive))
    assert shown(base, folder_times=True) == picture(project, folder_times=True)
    layer = base.layers[0]
    assert (layer / "sparse").stat().st_blocks * 512 < 1 << 20
    assert os.path.samefile(layer / "README", layer / "src/linked")
    assert store.build(of(archive)).base_id == base.base_id


def test_a_zip(store: BaseStore, project: Path, tmp_path: Path) -> None:
    archive = tmp_path / "project.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(_info("run", 0o755), b"#!/bin/sh\n")
        file.writestr(_info("src/", stat.S_IFDIR | 0o755), b"")
        file.writestr(_info("src/link", stat.S_IFLNK | 0o777), b"../run")
        file.writestr("plain", b"from another system")
    base = store.build(of(archive))
    found = shown(base)
    assert found[b"run"].mode == 0o755
    assert found[b"src/link"].content == b"../run"
    assert set(found) == {b"run", b"src", b"src/link", b"plain"}


def _info(name: str, mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, (2020, 2, 2, 2, 2, 2))
    info.external_attr = mode << 16
    info.create_system = 3
    return info


def test_an_archive_where_a_folder_was_asked_for(
    store: BaseStore, project: Path, tmp_path: Path
) -> None:
    (project / "nowhere").unlink()
    archive = pack(project, tmp_path / "project.tgz", "--gzip")
    base = store.build(BaseRequest(Project(ProjectKind.FOLDER, str(archive))))
    assert shown(base) == picture(project)


def test_a_compressed_file_is_no_archive(store: BaseStore, tmp_path: Path) -> None:
    for name, content in (
        ("log.gz", gzip.compress(b"just text" * 1000)),
        ("log.zst", zstandard.compress(b"just text" * 1000)),
    ):
        path = write(tmp_path / name, content)
        with pytest.raises(ProjectNotAFolder):
            store.build(BaseRequest(Project(ProjectKind.FOLDER, str(path))))
        with pytest.raises(ArchiveInvalid):
            store.build(of(path))


def refused(store: BaseStore, data: Path, asked: BaseRequest, kind: type[CarrelError]) -> str:
    with pytest.raises(kind) as caught:
        store.build(asked)
    assert caught.value.hint
    assert left_in_staging(data) == []
    assert store.list() == []
    return str(caught.value)


def test_archives_that_are_not_there(store: BaseStore, data: Path, tmp_path: Path) -> None:
    refused(store, data, of(tmp_path / "nowhere.tar"), ProjectNotFound)
    refused(store, data, of(tmp_path), ProjectInvalid)


def _tar(path: Path, fill: Callable[[tarfile.TarFile], None]) -> Path:
    with tarfile.open(path, "w") as tar:
        fill(tar)
    return path


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, link, 0o644
    return member


@pytest.mark.parametrize(
    "members",
    [
        [_member("/etc/passwd")],
        [_member("../outside")],
        [_member("a/../../outside")],
        [_member("link", tarfile.SYMTYPE, "/etc/passwd")],
        [_member("link", tarfile.SYMTYPE, "../outside")],
        [_member("a/b/link", tarfile.SYMTYPE, "../../../outside")],
        [_member("hard", tarfile.LNKTYPE, "/etc/passwd")],
        [_member("hard", tarfile.LNKTYPE, "../outside")],
        [_member("hard", tarfile.LNKTYPE, "not/there")],
        [_member("a", tarfile.SYMTYPE, "b"), _member("a/file")],
        [_member("a"), _member("a/file")],
        [_member("x" * 256)],
    ],
    ids=lambda members: "+".join(f"{member.name[:20]}:{member.linkname}" for member in members),
)
def test_archives_that_lead_out(
    store: BaseStore, data: Path, tmp_path: Path, members: list[tarfile.TarInfo]
) -> None:
    def fill(tar: tarfile.TarFile) -> None:
        for member in members:
            tar.addfile(member)

    refused(store, data, of(_tar(tmp_path / "bad.tar", fill)), ArchiveInvalid)
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("name", ["/etc/passwd", "../outside", "a/../../b"])
def test_zips_that_lead_out(store: BaseStore, data: Path, tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as file:
        file.writestr(zipfile.ZipInfo(name), b"x")
    refused(store, data, of(tmp_path / "bad.zip"), ArchiveInvalid)


def test_devices_are_skipped_and_privileges_dropped(store: BaseStore, tmp_path: Path) -> None:
    def fill(tar: tarfile.TarFile) -> None:
        for name, kind in (("null", tarfile.CHRTYPE), ("pipe", tarfile.FIFOTYPE)):
            tar.addfile(_member(name, kind))
        root = _member("root")
        root.mode = 0o6755
        tar.addfile(root)

    base = store.build(of(_tar(tmp_path / "odd.tar", fill)))
    assert {skip.path for skip in base.skipped} == {"null", "pipe"}
    assert shown(base)[b"root"].mode == 0o755


def test_the_last_of_two_entries_counts(store: BaseStore, tmp_path: Path) -> None:
    def fill(tar: tarfile.TarFile) -> None:
        for content in (b"first", b"second"):
            member = _member("file")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))

    base = store.build(of(_tar(tmp_path / "twice.tar", fill)))
    assert (base.layers[0] / "file").read_bytes() == b"second"


@pytest.mark.parametrize("kind", [*OPTIONS, "zip"])
def test_damaged_archives(
    store: BaseStore, data: Path, project: Path, tmp_path: Path, kind: str
) -> None:
    (project / "nowhere").unlink()
    write(project / "big", os.urandom(200_000))
    archive = tmp_path / f"project.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
            file.write(project / "big", "big")
    else:
        pack(project, archive, OPTIONS[kind])
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    refused(store, data, of(archive), ArchiveInvalid)
    if kind != "tar":  # which has no checksum over contents
        spoilt = bytearray(whole)
        for at in range(len(whole) // 2, len(whole) // 2 + 64):
            spoilt[at] ^= 0x55
        archive.write_bytes(spoilt)
        refused(store, data, of(archive), ArchiveInvalid)
    archive.write_bytes(os.urandom(5000))
    refused(store, data, of(archive), ArchiveInvalid)
    archive.write_bytes(b"")
    refused(store, data, of(archive), ArchiveInvalid)


def test_bombs(store: BaseStore, data: Path, tmp_path: Path) -> None:
    with (
        zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as file,
        file.open("zeros", "w", force_zip64=True) as member,
    ):
        for _ in range(64):
            member.write(bytes(1 << 20))
    refused(store, data, of(tmp_path / "bomb.zip", max_bytes=10 << 20), ProjectTooLarge)

    def claim(tar: tarfile.TarFile) -> None:
        member = _member("huge")
        member.size = 1 << 60
        tar.addfile(member)

    refused(store, data, of(_tar(tmp_path / "huge.tar", claim)), InsufficientDisk)

    def many(tar: tarfile.TarFile) -> None:
        for number in range(50):
            tar.addfile(_member(str(number)))

    refused(store, data, of(_tar(tmp_path / "many.tar", many), max_files=40), ProjectTooLarge)


def test_what_is_excluded_from_an_archive(store: BaseStore, project: Path, tmp_path: Path) -> None:
    (project / "nowhere").unlink()
    archive = pack(project, tmp_path / "project.tar", "")
    found = shown(store.build(of(archive, exclude=("node_modules/", "*.py"))))
    assert b"node_modules" not in found
    assert b"src/app/main.py" not in found
    assert b"src/app" in found


def test_an_archive_that_changed(store: BaseStore, project: Path, tmp_path: Path) -> None:
    (project / "nowhere").unlink()
    archive = pack(project, tmp_path / "project.tar", "")
    first = store.build(of(archive))
    write(project / "README", "changed")
    pack(project, archive, "")
    second = store.build(of(archive))
    assert second.base_id != first.base_id
    assert shown(second) == picture(project)
