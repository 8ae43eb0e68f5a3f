"""Layers over one another, as hostile as can be: nothing of them gets out of the image."""

from __future__ import annotations

import os
import stat
import tarfile
from pathlib import Path

import pytest

from carrel.domain.errors import CarrelError, ImageInvalid, InsufficientDisk, TooLarge
from carrel.domain.images import ImageLimits
from carrel.trees.images.store import ImageStore
from tests.sampling import EXHAUSTIVE, examples
from tests.trees.images.layouts import (
    PIPE,
    Member,
    file,
    folder,
    gone,
    hard,
    layer,
    link,
    listing,
    oci,
    take,
)
from tests.trees.tars import entry

BASE = layer(
    folder("etc"),
    file("etc/passwd", b"root"),
    file("etc/group", b"group"),
    folder("usr/lib"),
    file("usr/lib/a", b"a"),
    file("usr/lib/b", b"b"),
    link("lib", "usr/lib"),
)
BASED = {
    "etc": "/",
    "etc/passwd": "root",
    "etc/group": "group",
    "usr": "/",
    "usr/lib": "/",
    "usr/lib/a": "a",
    "usr/lib/b": "b",
    "lib": "-> usr/lib",
}
AS_ROOT = os.geteuid() == 0


def built(store: ImageStore, *members: Member) -> dict[str, str]:
    return listing(take(store, oci(BASE, layer(*members))))


def without(*names: str, **more: str) -> dict[str, str]:
    return {path: what for path, what in BASED.items() if path not in names} | more


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([gone("etc/.wh.group")], without("etc/group")),
        ([gone("usr/.wh.lib")], without("usr/lib", "usr/lib/a", "usr/lib/b")),
        ([gone(".wh.lib")], without("lib")),
        ([gone("etc/.wh.nothing"), gone("no/where/.wh.x")], BASED),
        # Only what is of layers below goes, whichever comes first.
        ([file("etc/group", b"new"), gone("etc/.wh.group")], BASED | {"etc/group": "new"}),
        ([gone("etc/.wh.group"), file("etc/group", b"new")], BASED | {"etc/group": "new"}),
        ([gone("usr/lib/.wh..wh..opq"), file("usr/lib/c", b"c")],
         without("usr/lib/a", "usr/lib/b") | {"usr/lib/c": "c"}),
        ([file("usr/lib/c", b"c"), gone("usr/.wh..wh..opq")],
         without("usr/lib/a", "usr/lib/b") | {"usr/lib/c": "c"}),
        ([file("usr/lib/c", b"c"), gone(".wh.usr")],
         without("usr/lib/a", "usr/lib/b") | {"usr/lib/c": "c"}),
        ([gone(".wh..wh..opq"), file("only", b"1")], {"only": "1"}),
        ([gone(".wh..wh.plnk"), folder(".wh..wh.aufs")], BASED),
    ],
)  # fmt: skip
def test_deletions(store: ImageStore, members: list[Member], expected: dict[str, str]) -> None:
    assert built(store, *members) == expected


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        # A file over a folder, and a folder over a file and over a symlink.
        ([file("usr", b"file")], without("usr", "usr/lib", "usr/lib/a", "usr/lib/b", usr="file")),
        ([folder("etc/passwd"), file("etc/passwd/x")],
         BASED | {"etc/passwd": "/", "etc/passwd/x": "x"}),
        ([file("etc/passwd/x")], BASED | {"etc/passwd": "/", "etc/passwd/x": "x"}),
        ([folder("lib")], BASED | {"lib": "/"}),
        # What lies behind a symlink is in a folder in its place, as in an overlay.
        ([file("lib/evil")], BASED | {"lib": "/", "lib/evil": "x"}),
        ([link("way", "/etc"), file("way/passwd")], BASED | {"way": "/", "way/passwd": "x"}),
        ([link("way", "../../.."), file("way/x")], BASED | {"way": "/", "way/x": "x"}),
        ([link("etc", "/"), folder("etc/ssh")],
         without("etc/passwd", "etc/group") | {"etc/ssh": "/"}),
        # Duplicates: the last counts.
        ([file("d", b"1"), file("d", b"2"), link("d", "3"), file("d", b"4")], BASED | {"d": "4"}),
        ([folder("d"), file("d/e"), file("d", b"1"), folder("d")], BASED | {"d": "/"}),
        # A file that is replaced keeps its other name's bytes.
        ([file("one", b"1"), hard("two", "one"), file("one", b"other")],
         BASED | {"one": "other", "two": "1"}),
        ([hard("pw", "etc/passwd"), hard("pw", "pw")], BASED | {"pw": "root"}),
        ([link("to", "/nowhere"), hard("too", "to")],
         BASED | {"to": "-> /nowhere", "too": "-> /nowhere"}),
        # Absolute names begin in the image, and links stay as they are.
        ([file("/abs"), link("l1", "/etc/shadow"), link("l2", "../../../x")],
         BASED | {"abs": "x", "l1": "-> /etc/shadow", "l2": "-> ../../../x"}),
        ([file("./a//b/./c")], BASED | {"a": "/", "a/b": "/", "a/b/c": "x"}),
        ([file("new\nline"), file("\udcff\udcfe")],
         BASED | {"new\nline": "x", "\udcff\udcfe": "x"}),
    ],
)  # fmt: skip
def test_entries(store: ImageStore, members: list[Member], expected: dict[str, str]) -> None:
    assert built(store, *members) == expected


@pytest.mark.parametrize(
    "member",
    [
        file("../out"),
        file("a/../../out"),
        file("/../out"),
        folder(".."),
        file("."),
        link("a", ""),
        hard("a", "../../etc/passwd"),
        hard("a", "/etc/../../passwd"),
        hard("a", "missing"),
        hard("a", "etc"),
        hard("a", "lib/a"),
        hard("a", ""),
        gone("etc/.wh."),
        gone("etc/.wh..."),
        gone("etc/.wh..") ,
        file("etc/.wh.group/x"),
        file("x" * 256),
        file("/".join("d" * 600)),
        (entry("odd", b"Z"), b""),
        (entry("old", tarfile.GNUTYPE_SPARSE), b""),
    ],
)  # fmt: skip
def test_what_is_refused(store: ImageStore, data: Path, member: Member) -> None:
    with pytest.raises(CarrelError) as refused:
        built(store, member)
    assert refused.value.code == "image_invalid"
    assert refused.value.hint
    assert store.list() == []
    assert os.listdir(data) == ["own"]
    assert os.listdir(data / "own" / "images" / ".staging") == []


def test_nothing_is_written_through_a_link(store: ImageStore, data: Path) -> None:
    outside = data / "outside"
    outside.mkdir()
    (outside / "file").write_text("theirs")
    found = built(
        store,
        link("out", str(outside)),
        file("out/new"),
        link("f", str(outside / "file")),
        file("f", b"ours"),
        link("again", str(outside)),
        gone("again/.wh.file"),
        link("more", str(outside)),
        gone("more/.wh..wh..opq"),
        link("pipe", str(outside / "file")),
        (entry("pipe", PIPE), b""),
    )
    assert found["f"] == "ours"
    assert found["out/new"] == "x"
    assert found["pipe"] == "|"
    assert os.listdir(outside) == ["file"]
    assert (outside / "file").read_text() == "theirs"


def test_modes_owners_and_what_is_left_out(store: ImageStore) -> None:
    device = entry("dev/null", tarfile.CHRTYPE)
    block = entry("dev/sda", tarfile.BLKTYPE)
    able = entry("bin/ping", mode=0o755)
    able.pax_headers = {"SCHILY.xattr.security.capability": "cap", "SCHILY.xattr.user.a": "b"}
    far = entry("far")
    far.uid, far.gid, far.mode = 100_000, 5, 0o6755
    image = take(
        store,
        oci(
            layer(
                file("bin/su", mode=0o4755),
                file("bin/wall", mode=0o2755, owner=5),
                folder("tmp", 0o1777),
                folder("shut", 0o000),
                file("shut/in", mode=0o000, owner=65_535),
                (able, b"x"),
                (device, b""),
                (block, b""),
                hard("dev/zero", "dev/null"),
                (far, b"x"),
            )
        ),
    )
    noted = {note.what.partition(" ")[0]: (note.count, note.names) for note in image.notes}
    assert noted["devices"] == (3, ("dev/null", "dev/sda", "dev/zero"))
    assert noted["capabilities"] == (1, ("bin/ping",))
    assert noted["extended"] == (1, ("bin/ping",))

    def mode(name: str) -> int:
        return stat.S_IMODE(os.lstat(image.folder / name).st_mode)

    assert mode("tmp") == 0o1777
    assert mode("shut") == 0
    assert mode("bin/ping") == 0o755
    if AS_ROOT:
        owner = os.lstat(image.folder / "shut/in")
        assert (owner.st_uid, owner.st_gid) == (65_535, 65_535)
        assert os.lstat(image.folder / "bin/wall").st_gid == 5
        assert (mode("bin/su"), mode("bin/wall"), mode("far")) == (0o4755, 0o2755, 0o755)
        assert os.lstat(image.folder / "far").st_uid == 0
        assert os.listxattr(image.folder / "bin/ping") == []
    else:
        assert (mode("bin/su"), mode("bin/wall")) == (0o755, 0o755)
        assert noted["set-user-id"][0] == 3
        assert "users" in noted
    assert stat.S_IMODE(os.stat(image.folder.parent.parent).st_mode) == 0o700
    assert not (image.folder / "dev/null").exists()


def test_a_device_takes_the_place_of_what_is_below(store: ImageStore) -> None:
    """In an overlay's own format, a device is a deletion."""
    found = built(store, (entry("etc/passwd", tarfile.CHRTYPE), b""))
    assert found == without("etc/passwd")


@pytest.mark.parametrize(
    ("limits", "members"),
    [
        (ImageLimits(max_entries=3), [file(f"f{number}") for number in range(3)]),
        (ImageLimits(max_entries=30), [file("/".join("abcdefghijk" * 3))]),
        (ImageLimits(max_bytes=1000), [file("big", bytes(1001))]),
    ],
)
def test_bombs_are_bounded(store: ImageStore, limits: ImageLimits, members: list[Member]) -> None:
    with pytest.raises(TooLarge):
        take(store, oci(layer(folder("etc"), *members)), limits=limits)
    assert store.list() == []


def test_a_file_that_claims_to_be_huge(store: ImageStore) -> None:
    info = entry("huge")
    info.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.realsize": str(10**17),
        "GNU.sparse.name": "huge",
    }
    with pytest.raises(TooLarge):
        take(store, oci(layer((info, b"0\n".ljust(512, b"\0")))))


def test_what_is_empty_takes_no_room(store: ImageStore) -> None:
    content = bytes(1 << 20) + b"end"
    image = take(store, oci(layer(file("large", content))))
    assert (image.folder / "large").read_bytes() == content
    assert os.stat(image.folder / "large").st_blocks * 512 < 1 << 19


def test_a_disk_that_is_nearly_full(store: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carrel.trees.images.root._SPARE_BYTES", 1 << 62)
    monkeypatch.setattr("carrel.trees.images.root._LOOK_BYTES", 1)
    with pytest.raises(InsufficientDisk):
        take(store, oci(BASE))
    assert store.list() == []


@pytest.mark.timeout(900 if EXHAUSTIVE else 120)
def test_a_hundred_thousand_files(store: ImageStore) -> None:
    """In one layer; the next deletes half of the folders, and what is below."""
    folders = examples(20, exhaustive=1000)
    many = layer(*(file(f"d{n}/{m}") for n in range(folders) for m in range(100)))
    half = layer(*(gone(f".wh.d{n}") for n in range(0, folders, 2)))
    image = take(store, oci(many, half))
    assert len(listing(image)) == folders // 2 * 101
    with pytest.raises(TooLarge):
        take(store, oci(many), limits=ImageLimits(max_entries=folders * 50))
    assert [one.image_id for one in store.list()] == [image.image_id]


def test_many_files_and_layers(store: ImageStore) -> None:
    layers = [layer(*(file(f"d{n}/{m}") for m in range(50)), gone(f"d{n - 1}/.wh.7"))
              for n in range(1, 21)]  # fmt: skip
    found = listing(take(store, oci(*layers)))
    assert len(found) == 20 * 50 - 19 + 20
    with pytest.raises(ImageInvalid, match="21 layers"):
        take(store, oci(*layers, BASE), limits=ImageLimits(max_layers=20))
