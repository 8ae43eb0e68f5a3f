"""Images that are kept: names, spaces that use them, removal, and processes that are killed."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from carrel.domain.errors import (
    CarrelError,
    ImageInUse,
    ImageInvalid,
    ImageNotFound,
    TreeDamaged,
)
from carrel.domain.images import ImageImport, RootImage
from carrel.domain.projects import Progress
from carrel.trees.images.store import ImageStore
from tests.trees.images.layouts import file, folder, layer, listing, oci, take

AS_ROOT = os.geteuid() == 0


def one(store: ImageStore, number: int, name: str = "", size: int = 1) -> RootImage:
    content = layer(folder("etc"), file("etc/number", b"%d" % number), file("big", bytes(size)))
    return take(store, content, name or f"image:{number}")


def test_names_move_and_images_stay(store: ImageStore) -> None:
    first, second = one(store, 1, "tools"), one(store, 2, "tools")
    assert store.get("tools").image_id == second.image_id
    assert store.get(first.image_id).names == ()
    store.tag(first.image_id, "old/tools:1")
    assert store.get("old/tools:1").names == ("old/tools:1",)
    assert [image.image_id for image in store.list()] == [second.image_id, first.image_id]
    assert ImageStore(store._images.parent).get("tools").config == second.config
    # By one of two names only that goes; with its last name an image goes.
    store.tag("tools", "more")
    store.remove("more")
    assert store.get("tools").names == ("tools",)
    store.remove("tools")
    with pytest.raises(ImageNotFound):
        store.get(second.image_id)
    store.tag("old/tools:1", "another")
    store.remove(first.image_id)
    assert store.list() == []
    with pytest.raises(ImageNotFound, match="another"):
        store.get("another")
    with pytest.raises(ImageNotFound):
        store.remove("another")


@pytest.mark.parametrize("name", ["", "-x", "a b", "x" * 300, "a\n", "im_" + "a" * 26, "../x"])
def test_names_that_cannot_be(store: ImageStore, name: str) -> None:
    with pytest.raises(ImageInvalid, match="cannot be the name"):
        store.take(ImageImport(name, io.BytesIO(b"")))


def test_an_image_that_is_used_stays(store: ImageStore) -> None:
    image = one(store, 1, "tools")
    store.hold("tools", "sp_a")
    store.hold(image.image_id, "sp_a")
    store.hold("tools", "sp_b")
    with pytest.raises(ImageInUse, match="tools is used by sp_a, sp_b") as refused:
        store.remove("tools")
    assert refused.value.details["spaces"] == ["sp_a", "sp_b"]
    assert store.get("tools").holders == ("sp_a", "sp_b")
    assert store.prune(0) == ()
    store.release("sp_a")
    store.release("sp_a")
    store.release("sp_b", "no such image")
    assert store.get("tools").holders == ("sp_b",)
    store.keep_holders(lambda: ["sp_c"])
    assert store.get("tools").holders == ()
    store.remove("tools")
    with pytest.raises(ImageNotFound):
        store.hold(image.image_id, "sp_a")
    with pytest.raises(ImageInvalid):
        store.hold(image.image_id, "../sp_a")


def test_pruning(store: ImageStore) -> None:
    images = [one(store, number, size=1000) for number in range(4)]
    store.remove("image:0")
    images[0] = one(store, 0, "image:1", size=1000)
    for age, image in enumerate(images):
        record = image.folder.parent / "image.json"
        os.utime(record, (1_000_000 - age, 1_000_000 - age))
    nameless = images[1].image_id
    assert [image.image_id for image in store.prune(None, pretend=True)] == [nameless]
    assert len(store.list()) == 4
    assert [image.image_id for image in store.prune(None)] == [nameless]
    store.hold("image:3", "sp_a")
    # The one that was not used for longest is held.
    assert [image.image_id for image in store.prune(2500)] == [images[2].image_id]
    assert [image.image_id for image in store.prune(0)] == [images[0].image_id]
    assert [image.image_id for image in store.list()] == [images[3].image_id]
    assert sorted(os.listdir(store._images)) == sorted(
        [".staging", "holders", "names.json", images[3].image_id]
    )


def test_the_same_by_several_at_once(store: ImageStore, data: Path) -> None:
    content = oci(layer(file("a")), layer(*(file(f"d/{number}") for number in range(200))))
    found: list[RootImage] = []
    at_once = threading.Barrier(4)

    def run(number: int) -> None:
        at_once.wait(10)
        found.append(take(ImageStore(data / "own"), content, f"name{number}"))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({image.image_id for image in found}) == 1
    assert store.get("name0").names == ("name0", "name1", "name2", "name3")
    assert os.listdir(store._staging) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from carrel.domain.images import ImageImport
from carrel.trees.images.store import ImageStore
stage, data, archive = sys.argv[1:]
def kill(*_): os.kill(os.getpid(), signal.SIGKILL)
def on_progress(step):
    if step.stage == stage: kill()
import carrel.trees.images.store as module
if stage == "publish": module.sync_folder = kill
if stage == "sync": module.call = kill
ImageStore(Path(data)).take(ImageImport("x", Path(archive)), on_progress)
"""


@pytest.mark.parametrize("stage", ["reading", "unpacking", "sync", "publish"])
def test_killed_half_way(data: Path, stage: str) -> None:
    own, archive = data / "own", data / "archive"
    archive.write_bytes(oci(layer(folder("d", 0o000), file("d/x"))))
    words = [sys.executable, "-c", KILLED, stage, str(own), str(archive)]
    done = subprocess.run(words, timeout=60, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    if stage != "publish":
        assert len(os.listdir(own / "images/.staging")) == 2
    store = ImageStore(own)
    assert os.listdir(store._staging) == []
    # Once it has its place it is whole, and lacks a name only.
    assert [image.names for image in store.list()] == ([()] if stage == "publish" else [])
    assert "d/x" in listing(store.take(ImageImport("x", archive))) or not AS_ROOT
    assert len(store.list()) == 1


def test_a_sweep_leaves_what_is_being_made(store: ImageStore, data: Path) -> None:
    seen = []

    def sweep(_: Progress) -> None:
        seen.append(len(os.listdir(ImageStore(data / "own")._staging)))

    image = store.take(ImageImport("x", io.BytesIO(oci(layer(file("a"))))), sweep)
    assert seen[0] == 2
    assert listing(image) == {"a": "x"}


def test_what_is_damaged_is_told_and_can_be_removed(store: ImageStore) -> None:
    image = one(store, 1, "tools")
    record = image.folder.parent / "image.json"
    good = record.read_bytes()
    for content in (b"", b"[]", good.replace(b'"version": 1', b'"version": 9')):
        record.write_bytes(content)
        with pytest.raises(TreeDamaged, match="carrel image rm"):
            store.get("tools")
        assert store.list() == []
    # Imported again, it is whole.
    again = one(store, 1, "tools")
    assert again.image_id == image.image_id
    record.write_bytes(b"")
    store.remove("tools")
    assert not image.folder.parent.exists()
    (store._images / "names.json").write_text("[")
    with pytest.raises(TreeDamaged, match="names"):
        store.get("tools")
    # Without names an image is whole all the same, and stays where it is.
    (store._images / "names.json").unlink()
    image = one(store, 1, "tools")
    inode = image.folder.stat().st_ino
    (store._images / "names.json").write_text("[")
    with pytest.raises(TreeDamaged, match="names"):
        one(store, 1, "tools")
    assert image.folder.stat().st_ino == inode


def test_a_folder_as_an_image(store: ImageStore, data: Path) -> None:
    source = data / "root"
    (source / "etc/deep").mkdir(parents=True)
    (source / "etc/passwd").write_text("root")
    os.link(source / "etc/passwd", source / "etc/other")
    (source / "out").symlink_to("/etc/shadow")
    os.mkfifo(source / "pipe")
    (source / os.fsdecode(b"odd\xff\n")).write_text("x")
    (source / "run").write_text("#!/bin/sh")
    (source / "run").chmod(0o4755)
    (source / "tmp").mkdir()
    (source / "tmp").chmod(0o1777)
    with open(source / "holes", "wb") as sparse:
        sparse.truncate(1 << 20)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(source / "socket"))
    image = store.take(ImageImport("x", source))
    found = listing(image)
    assert found["out"] == "-> /etc/shadow"
    assert found["pipe"] == "|"
    assert found["odd\udcff\n"] == "x"
    assert found.keys() == listing(image).keys()
    assert "socket" not in found
    assert [note.names for note in image.notes if "sockets" in note.what] == [("socket",)]
    passwd = os.stat(image.folder / "etc/passwd")
    assert passwd.st_nlink == 2
    assert os.stat(image.folder / "run").st_mode & 0o7777 == (0o4755 if AS_ROOT else 0o755)
    assert os.stat(image.folder / "tmp").st_mode & 0o7777 == 0o1777
    assert os.stat(image.folder / "holes").st_blocks == 0
    # Times do not name it; what is in it does.
    os.utime(source / "etc/passwd", (5, 5))
    assert store.take(ImageImport("x", source)).image_id == image.image_id
    (source / "etc/passwd").write_text("toor")
    assert store.take(ImageImport("x", source)).image_id != image.image_id


def test_folders_that_cannot_be(store: ImageStore, data: Path) -> None:
    with pytest.raises(ImageInvalid, match="No such file"):
        store.take(ImageImport("x", data / "missing"))
    (data / "loop").symlink_to("loop")
    with pytest.raises(ImageInvalid):
        store.take(ImageImport("x", data / "loop"))
    os.mkfifo(data / "pipe")
    with pytest.raises(ImageInvalid, match="neither a file nor a folder"):
        store.take(ImageImport("x", data / "pipe"))
    (data / "shut").mkdir()
    (data / "shut/file").touch(mode=0o000)
    if not AS_ROOT:
        with pytest.raises(ImageInvalid, match="'file' may not be read"):
            store.take(ImageImport("x", data / "shut"))


def test_the_data_folder_is_not_in_its_own_image(store: ImageStore, data: Path) -> None:
    (data / "file").write_text("x")
    image = store.take(ImageImport("x", data))
    assert listing(image) == {"file": "x", "own": "/"}


def test_errors_have_codes(store: ImageStore) -> None:
    acts: list[Callable[[], object]] = [
        lambda: store.get("x"),
        lambda: store.tag("x", "y"),
        lambda: store.remove("x"),
    ]
    for act in acts:
        with pytest.raises(CarrelError) as refused:
            act()
        assert refused.value.code == "image_not_found"
        assert "carrel image" in refused.value.hint
