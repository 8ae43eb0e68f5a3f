"""Files and folders into and out of spaces."""

from __future__ import annotations

import os
from pathlib import Path
from subprocess import PIPE

import pytest

from carrel.cli.verbs.cp import split
from carrel.client.archives import own_umask
from tests.cli.program import TIMEOUT_S, Program


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("space:path", ("space", "path")),
        ("space:", ("space", ".")),
        ("space:/", ("space", ".")),
        ("space:/a/b", ("space", "a/b")),
        ("space:a:b", ("space", "a:b")),
        ("./a:b", None),
        ("/a:b", None),
        ("plain", None),
        ("-", None),
        (":x", None),
    ],
)
def test_which_side_is_meant(word: str, found: tuple[str, str] | None) -> None:
    assert split(word) == found


def test_files(carrel: Program, space: str, tmp_path: Path) -> None:
    (tmp_path / "script").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "script").chmod(0o755)
    carrel.good("cp", "script", f"{space}:")
    carrel.good("cp", "script", f"{space}:other")
    assert carrel.good("exec", space, "./script") == "ran\n"
    assert carrel.good("exec", space, "./other") == "ran\n"
    carrel.good("exec", space, "--", "chmod", "777", "other")
    carrel.good("cp", f"{space}:other", "other")
    umask = own_umask() & 0o022
    assert umask and (tmp_path / "other").stat().st_mode & 0o777 == 0o777 & ~umask
    carrel.good("cp", f"{space}:README.md", "copy")
    assert (tmp_path / "copy").read_text() == "read me\n"
    (tmp_path / "folder").mkdir()
    carrel.good("cp", f"{space}:README.md", "folder")
    assert (tmp_path / "folder" / "README.md").is_file()


def test_folders(carrel: Program, space: str, tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "file").write_bytes(bytes(range(256)) * 4000)
    (tmp_path / "in" / "way").symlink_to("deep/file")
    (tmp_path / "in" / "out").symlink_to("/etc/passwd")
    done = carrel("cp", "in", f"{space}:new")
    assert done.code == 0 and "Left out" in done.err and "/etc/passwd" in done.err
    carrel.good("cp", f"{space}:new", "back")
    assert (tmp_path / "back" / "deep" / "file").read_bytes() == bytes(range(256)) * 4000
    assert os.readlink(tmp_path / "back" / "way") == "deep/file"
    assert not (tmp_path / "back" / "out").is_symlink()
    carrel.good("cp", f"{space}:.", "everything")
    assert sorted(os.listdir(tmp_path / "everything")) == ["README.md", "new"]
    found = carrel.json("cp", f"{space}:new", "json")
    assert found["target"] == "json" and found["bytes"] > 0 and found["skipped"] == []


DEEP = """
import os
open("near", "w").write("x")
os.mkfifo("pipe")
for _ in range(80):
    os.mkdir("d" * 250)
    os.chdir("d" * 250)
open("precious", "w").write("x")
"""


def test_what_cannot_be_copied_is_told(carrel: Program, tmp_path: Path) -> None:
    """And counts as not copied out, as the rest does not; a pipe holds nothing that could be."""
    carrel.good("new", "--empty", "--name", "deep")
    carrel.good("exec", "deep", "--", "python3", "-c", DEEP)
    done = carrel("cp", "deep:.", "out")
    assert done.code != 0 and "not complete" in done.err and "nested deeper" in done.err
    assert (tmp_path / "out" / "near").read_text() == "x"
    refused = carrel("rm", "deep")
    assert refused.code != 0 and "1 change " in refused.err
    carrel.good("exec", "deep", "--", "sh", "-c", "rm -r d*")
    carrel.good("cp", "deep:.", "again")
    carrel.good("rm", "deep")


FULL = 'mkdir -p full && mount -t tmpfs -o size=16k full full && exec "$@"'
WORK = "mkdir d; echo w > w; echo v > d/v; head -c 100000 /dev/urandom > d/big"


def test_what_did_not_arrive_is_not_copied_out(carrel: Program, tmp_path: Path) -> None:
    """Although all of it was sent; and what arrived is, file by file or as a folder."""
    carrel.good("new", "--empty", "--name", "one")
    carrel.good("exec", "one", "--", "sh", "-c", WORK)
    full = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", FULL, "sh")
    for before, target in ((full, "full"), ((), "-")):
        for path in ("d/big", ".") if before else ("w", "d/big"):
            with open("/dev/full", "wb") as out:
                copying = carrel.start(
                    *("cp", f"one:{path}", target), before=before, stdout=out, stderr=PIPE
                )
                _, said = copying.communicate(timeout=TIMEOUT_S)
            assert copying.returncode == 1 and b"No space left" in said, said
            assert "3 changes " in carrel.bad(4, "rm", "one")
    carrel.good("cp", "one:w", "-")
    assert "2 changes " in carrel.bad(4, "rm", "one")
    carrel.good("cp", "one:d/v", "v")
    assert "1 change " in carrel.bad(4, "rm", "one")
    carrel.good("exec", "one", "--", "sh", "-c", "echo new > w")
    carrel.good("cp", "one:d", "d")
    assert "1 change " in carrel.bad(4, "rm", "one")
    carrel.good("cp", "one:.", "all")
    carrel.good("rm", "one")


def test_standard_streams(carrel: Program, space: str) -> None:
    data = os.urandom(500_000)
    carrel.good("cp", "-", f"{space}:bytes", stdin=data)
    assert carrel("cp", f"{space}:bytes", "-").bytes == data


def test_mistakes(carrel: Program, space: str, tmp_path: Path) -> None:
    assert "One path" in carrel.bad(2, "cp", "a", "b")
    assert "One path" in carrel.bad(2, "cp", f"{space}:a", f"{space}:b")
    assert "nothing" in carrel.bad(3, "cp", f"{space}:nothing", "x")
    assert "nobody" in carrel.bad(3, "cp", "nobody:x", "y")
    assert "nothing" in carrel.bad(1, "cp", "nothing", f"{space}:x")
    (tmp_path / "folder").mkdir()
    assert "folder" in carrel.bad(4, "cp", "folder", f"{space}:README.md")
    assert sorted(os.listdir(tmp_path)) == ["folder", "project"]
