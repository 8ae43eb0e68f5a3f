"""How discovery reads a folder of strangers, and a tree."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.domain.environments import Listing, ReadFiles, Rule
from carrel.domain.errors import (
    PathError,
    PathEscapes,
    ProjectNotAFolder,
    ProjectNotFound,
    ProjectUnreadable,
)
from carrel.environments import files as files_module
from carrel.environments.discovery import inspect_project
from carrel.environments.files import MAX_BYTES, FolderFiles, open_folder
from tests.environments.rig import NO_PROGRAMS, messages

ORDINARY = pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("outside")
    (tmp_path / "beside").mkdir()
    folder = tmp_path / "project"
    (folder / "inner").mkdir(parents=True)
    (folder / "file").write_text("content")
    (folder / "inner" / "deep").write_text("deep")
    (folder / "to-file").symlink_to("inner/../file")
    (folder / "to-folder").symlink_to("inner")
    (folder / "out").symlink_to("../secret")
    (folder / "out-absolute").symlink_to(tmp_path / "secret")
    (folder / "out-folder").symlink_to("../beside")
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nowhere")
    os.mkfifo(folder / "fifo")
    return folder


@pytest.fixture
def files(root: Path) -> Iterator[ReadFiles]:
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        yield FolderFiles(fd)
    finally:
        os.close(fd)


def test_reading(files: ReadFiles) -> None:
    assert files.read("file", 100) == b"content"
    assert files.read("file", 3) == b"con"
    assert files.read("file", 0) == b""
    assert files.read("to-file", 100) == b"content"
    assert files.read("to-folder/deep", 100) == b"deep"


@pytest.mark.parametrize(
    "path", ["nothing", "nothing/deep", "file/deep", "inner", "fifo", "dangling", "loop"]
)
def test_what_is_no_file(files: ReadFiles, path: str) -> None:
    assert files.read(path, 100) is None


@pytest.mark.parametrize("path", ["out", "out-absolute", "../secret", "out-folder/x", "/etc/x"])
def test_what_leads_out(files: ReadFiles, path: str) -> None:
    with pytest.raises(PathEscapes):
        files.read(path, 100)


def test_listing(files: ReadFiles) -> None:
    links = ("dangling", "fifo", "file", "loop", "out", "out-absolute", "out-folder")
    assert files.list(".") == Listing((*links, "to-file", "to-folder"), ("inner",))
    assert files.list("to-folder") == Listing(("deep",))
    for path in ("nothing", "file", "loop"):
        assert files.list(path) == Listing()
    with pytest.raises(PathEscapes):
        files.list("out-folder")


@ORDINARY
def test_what_may_not_be_read(files: ReadFiles, root: Path) -> None:
    (root / "file").chmod(0)
    with pytest.raises(PathError):
        files.read("file", 100)


def test_too_many_names(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "MAX_NAMES", 3)
    with open_folder(root) as files:
        listing = files.list(".")
    assert not listing.complete
    assert len(listing.files + listing.folders) == 3
    report = inspect_project(root, NO_PROGRAMS)
    assert messages(report) == [(".", None, "It has too many names; not all were looked at.")]


def test_descriptors_are_closed(root: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        inspect_project(root, NO_PROGRAMS)
    assert len(os.listdir("/proc/self/fd")) == before


def test_markers_that_lead_out_count_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("FROM outside")
    project = tmp_path / "project"
    project.mkdir()
    for name in ("Dockerfile", "Makefile", ".nvmrc"):
        (project / name).symlink_to("../outside")
    (project / ".devcontainer").symlink_to("..")
    report = inspect_project(project, NO_PROGRAMS)
    assert report.decided.rule is Rule.DEFAULT
    assert (report.versions, report.languages) == ((), ())
    assert [(note.path, note.message) for note in report.notes] == [
        ("Dockerfile", "'Dockerfile' leads out of the project."),
        (
            ".devcontainer/devcontainer.json",
            "'.devcontainer/devcontainer.json' leads out of the project.",
        ),
        (".devcontainer", "'.devcontainer' leads out of the project."),
        ("Makefile", "'Makefile' leads out of the project."),
        (".nvmrc", "'.nvmrc' leads out of the project."),
    ]


def test_markers_that_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").mkdir()
    os.mkfifo(tmp_path / "go.mod")
    (tmp_path / "Gemfile").symlink_to("nowhere")
    report = inspect_project(tmp_path, NO_PROGRAMS)
    assert report.decided.rule is Rule.DEFAULT
    assert report.notes == ()


def test_files_that_are_too_large(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text("{}" + " " * MAX_BYTES)
    (tmp_path / "package-lock.json").write_text("[" * (MAX_BYTES + 1))
    report = inspect_project(tmp_path, NO_PROGRAMS)
    assert [one.text for one in report.setup] == ["npm ci"]
    assert messages(report) == [
        ("package.json", None, "It is larger than 256 KiB, and was not read.")
    ]


def test_files_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_bytes(b"FROM a\nENV A=\xff\n")
    (tmp_path / "package.json").write_text("{}")
    (tmp_path / "bun.lockb").write_bytes(b"\xff\x00binary")
    report = inspect_project(tmp_path, NO_PROGRAMS)
    assert report.variables[0].value == "\N{REPLACEMENT CHARACTER}"
    assert messages(report) == [
        ("Dockerfile", None, "It is not UTF-8; what could not be read is replaced.")
    ]


def test_names_that_cannot_be_shown(tmp_path: Path) -> None:
    (tmp_path / "\x1b[31m.csproj").touch()
    with open(os.fsencode(tmp_path) + b"/\xff.csproj", "xb"):
        pass
    assert inspect_project(tmp_path, NO_PROGRAMS).languages == ()


def test_a_project_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ProjectNotFound):
        inspect_project(tmp_path / "nothing", NO_PROGRAMS)
    with pytest.raises(ProjectNotFound):
        inspect_project(tmp_path / "zero\0byte", NO_PROGRAMS)
    with pytest.raises(ProjectNotAFolder):
        inspect_project(tmp_path / "file", NO_PROGRAMS)
    with pytest.raises(ProjectUnreadable):
        inspect_project(tmp_path / ("x" * 300), NO_PROGRAMS)
