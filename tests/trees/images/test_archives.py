"""Archives of images: every form there is, each with the same image in it, and damaged ones."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carrel.domain.errors import CarrelError, ImageInvalid, TooLarge
from carrel.domain.images import ImageImport, ImageLimits, Platform
from carrel.domain.projects import Progress
from carrel.trees.images.manifests import this_platform
from carrel.trees.images.store import ImageStore
from tests.sampling import EXHAUSTIVE
from tests.trees.images.layouts import (
    HARD,
    LINK,
    Layout,
    config_of,
    file,
    folder,
    gone,
    layer,
    listing,
    oci,
    saved,
    take,
    zstd,
)
from tests.trees.tars import entry, tar_of

LOWER = layer(folder("etc"), file("etc/passwd", b"root"), file("etc/gone"))
UPPER = layer(gone("etc/.wh.gone"), file("srv/new", b"new"))
WHOLE = {"etc": "/", "etc/passwd": "root", "srv": "/", "srv/new": "new"}


def plain(content: bytes) -> bytes:
    return content


def nested() -> bytes:
    layout = Layout()
    here = this_platform()
    mine = {"os": here.os, "architecture": here.architecture}
    papers = {"vnd.docker.reference.type": "attestation-manifest"}
    for_others = layout.image([LOWER], config=config_of([LOWER], architecture="s390x"))
    layout.add(for_others | {"platform": {"os": "linux", "architecture": "s390x"}})
    layout.add(layout.image([LOWER]) | {"annotations": papers})
    layout.add(layout.image([UPPER]) | {"platform": mine | {"variant": "v3"}})
    layout.add(layout.image([LOWER, UPPER], zstd) | {"platform": mine})
    return layout.nested(2).tar()


FORMS: dict[str, Callable[[], bytes]] = {
    "oci": lambda: oci(LOWER, UPPER),
    "oci-zstd": lambda: oci(LOWER, UPPER, pack=zstd),
    "oci-plain": lambda: oci(LOWER, UPPER, pack=plain),
    "oci-nested": nested,
    "docker": lambda: saved(LOWER, UPPER),
    "docker.gz": lambda: gzip.compress(saved(LOWER, UPPER)),
    "docker.zst": lambda: zstd(saved(LOWER, UPPER)),
    "oci.xz": lambda: lzma.compress(oci(LOWER, UPPER)),
    "oci.bz2": lambda: bz2.compress(oci(LOWER, UPPER)),
    "two-pieces": lambda: (
        gzip.compress(saved(LOWER, UPPER)[:5000])
        + gzip.compress(saved(LOWER, UPPER)[5000:])
        + bytes(600)
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_same_image(store: ImageStore, data: Path, form: str) -> None:
    content = FORMS[form]()
    image = take(store, content)
    assert listing(image) == WHOLE
    assert image.config.user == "app"
    assert image.config.env == (("PATH", "/bin"), ("A", "b=c"))
    assert image.config.entrypoint == ("/bin/sh", "-c")
    assert image.config.ports == ("80/tcp",)
    assert image.config.platform == Platform("linux", this_platform().architecture)
    assert image.made == "2026-01-02T03:04:05Z"
    # From a file, and once more in another form: it is here already.
    (data / "file").write_bytes(content)
    again = store.take(ImageImport("y", data / "file"))
    assert (again.image_id, again.names) == (image.image_id, ("x", "y"))
    assert take(store, oci(LOWER, UPPER)).image_id == image.image_id


def test_a_layout_that_is_a_folder(store: ImageStore, data: Path) -> None:
    layout = Layout()
    layout.add(layout.image([LOWER, UPPER]))
    image = store.take(ImageImport("x", layout.write(data / "layout")))
    assert listing(image) == WHOLE
    blob = next((data / "layout/blobs/sha256").iterdir())
    blob.unlink()
    blob.symlink_to("/etc/passwd")
    store.remove("x")
    with pytest.raises(ImageInvalid, match="leads out"):
        store.take(ImageImport("x", data / "layout"))


@pytest.mark.parametrize("pack", [plain, gzip.compress, lzma.compress])
def test_a_root_file_system_as_a_tar(store: ImageStore, pack: Callable[[bytes], bytes]) -> None:
    packed = layer(folder("."), folder("bin"), file("bin/sh"), file("manifest.json", b"{}"))
    image = take(store, pack(packed))
    assert listing(image) == {"bin": "/", "bin/sh": "x", "manifest.json": "{}"}
    assert image.config.env == ()


def test_one_of_several(store: ImageStore) -> None:
    layout = Layout()
    key = "org.opencontainers.image.ref.name"
    layout.add(layout.image([LOWER], annotations={key: "one"}))
    layout.add(layout.image([UPPER], annotations={key: "two"}))
    content = layout.tar()
    with pytest.raises(ImageInvalid, match="2 images: one, two"):
        take(store, content)
    with pytest.raises(ImageInvalid, match="no 'three' in it, but one, two"):
        store.take(ImageImport("x", io.BytesIO(content), reference="three"))
    found = store.take(ImageImport("x", io.BytesIO(content), reference="two"))
    assert "srv/new" in listing(found)


def test_a_layer_that_two_images_share(store: ImageStore) -> None:
    """Docker saves it once, and a symlink to it; others a hard link."""
    said = config_of([LOWER, LOWER, LOWER])
    manifest = [{"Config": "c.json", "Layers": ["a/layer.tar", "b/layer.tar", "c/layer.tar"]}]
    content = tar_of(
        file("a/layer.tar", LOWER),
        (entry("b/layer.tar", LINK, "../a/layer.tar"), b""),
        (entry("c/layer.tar", HARD, "a/layer.tar"), b""),
        file("c.json", said),
        file("manifest.json", json.dumps(manifest).encode()),
    )
    assert "etc/gone" in listing(take(store, content))


def changed(change: Callable[[Layout], object]) -> bytes:
    layout = Layout()
    layout.add(layout.image([LOWER]))
    change(layout)
    return layout.tar()


def blob_of(layout: Layout, part: bytes) -> str:
    return next(name for name, content in layout.files.items() if part in content)


def _other_layer(layout: Layout) -> None:
    name = next(name for name, one in layout.files.items() if one.startswith(b"\x1f\x8b"))
    content = layout.files[name]
    # The same size, and all that gzip checks: the name of the file, in its header.
    layout.files[name] = content[:4] + bytes([content[4] ^ 1]) + content[5:]


def _no_layer(layout: Layout) -> None:
    name = next(name for name, one in layout.files.items() if one.startswith(b"\x1f\x8b"))
    del layout.files[name]


def _deep(layout: Layout) -> None:
    layout.nested(6)


def _many(layout: Layout) -> None:
    layout.manifests = layout.manifests * 1001


def _manifest(layout: Layout, **more: Any) -> None:
    """Another manifest, with the right digest."""
    said = json.loads(layout.files[blob_of(layout, b'"schemaVersion"')])
    content = json.dumps(said | more).encode()
    layout.manifests = [layout.blob(content, "application/vnd.oci.image.manifest.v1+json")]


def _wrong_ids(layout: Layout) -> None:
    layout.manifests = [layout.image([LOWER], config=config_of([UPPER]))]


DAMAGES: dict[str, tuple[Callable[[Layout], object], str]] = {
    "another layer": (_other_layer, "is not what the image says"),
    "no layer": (_no_layer, "is not in it"),
    "deep indexes": (_deep, "more images than"),
    "many images": (_many, "more images than"),
    "no image": (lambda layout: layout.manifests.clear(), "no image in it"),
    "another content": (_wrong_ids, "is not what the image says"),
    "no layers": (lambda layout: _manifest(layout, layers=[]), "0 layers, and should have 1"),
    "an odd digest": (
        lambda layout: layout.manifests[0].update(digest="sha256:../../etc/passwd"),
        "no digest that is known",
    ),
    "another size": (lambda layout: layout.manifests[0].update(size=5), "another size"),
    "no json": (lambda layout: layout.manifests[0].update(platform=5), "cannot be read"),
    "another config": (
        lambda layout: layout.files.update(
            {blob_of(layout, b"rootfs"): config_of([LOWER], created="2027-01-01T00:00:00Z")}
        ),
        "something else",
    ),
    "for others": (
        lambda layout: setattr(
            layout,
            "manifests",
            [layout.image([LOWER], config=config_of([LOWER], architecture="vax"))],
        ),
        "for 'linux/vax', and this machine is linux/",
    ),
    "a chart": (
        lambda layout: _manifest(
            layout, config=layout.blob(b"{}", "application/vnd.cncf.helm.config.v1+json")
        ),
        "which is no image",
    ),
    "encrypted": (
        lambda layout: _manifest(
            layout,
            layers=[layout.blob(b"x", "application/vnd.oci.image.layer.v1.tar+encrypted")],
        ),
        "encrypted",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_layouts_that_are_damaged(store: ImageStore, damage: str) -> None:
    change, why = DAMAGES[damage]
    with pytest.raises(ImageInvalid, match=why) as refused:
        take(store, changed(change))
    assert refused.value.hint
    assert store.list() == []
    assert os.listdir(store._staging) == []


def test_a_saved_image_whose_config_is_another(store: ImageStore) -> None:
    content = saved(LOWER).replace(b'"User": "app"', b'"User": "abc"')
    with pytest.raises(ImageInvalid, match="something else"):
        take(store, content)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no tar"),
        (b"hello" * 500, "no tar"),
        (gzip.compress(b"hello" * 500), "no tar"),
        (oci(LOWER)[:3000], "ends in the middle"),
        (gzip.compress(oci(LOWER))[:-20], "decompressed"),
        (zstd(oci(LOWER))[:30], "ends in the middle|no tar|decompressed"),
        (b"\x1f\x8bgarbage" * 100, "decompressed"),
        (tar_of(file("manifest.json", b"[")), "cannot be read"),
        (tar_of(file("manifest.json", b"[" * 100_000)), "cannot be read"),
        (tar_of(file("manifest.json", b"[]")), "no image in it"),
        (tar_of(file("oci-layout"), file("index.json", b" " * (5 << 20))), "5242880 bytes"),
        (tar_of(), "no tar"),
    ],
    ids=range(12),
)
def test_archives_that_are_none(store: ImageStore, content: bytes, why: str) -> None:
    with pytest.raises(ImageInvalid, match=why):
        take(store, content)
    assert os.listdir(store._staging) == []


def test_an_archive_that_becomes_large(store: ImageStore) -> None:
    with pytest.raises(TooLarge):
        take(store, gzip.compress(bytes(1 << 20)), limits=ImageLimits(max_bytes=1 << 19))
    bomb = zstd(layer(file("zeros", bytes(1 << 20))))
    layout = Layout()
    said = config_of([layer(file("zeros", bytes(1 << 20)))])
    layout.add(layout.image([bomb], plain, config=said))
    with pytest.raises(TooLarge):
        take(store, layout.tar(), limits=ImageLimits(max_bytes=1 << 19))


def test_progress_is_told_and_can_end_it(store: ImageStore) -> None:
    seen: list[Progress] = []

    def end(step: Progress) -> None:
        seen.append(step)
        raise InterruptedError("enough")

    content = oci(LOWER, UPPER)
    with pytest.raises(InterruptedError):
        store.take(ImageImport("x", io.BytesIO(content)), end)
    assert seen
    assert store.list() == []
    assert os.listdir(store._staging) == []


@settings(
    max_examples=400 if EXHAUSTIVE else 40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    form=st.sampled_from(["oci", "oci-plain", "docker", "docker.gz"]),
    places=st.lists(
        st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=8
    ),
    cut=st.none() | st.integers(0, 20_000),
)
def test_any_damage_is_told(
    store: ImageStore, form: str, places: list[tuple[int, int]], cut: int | None
) -> None:
    """An image that is taken in is the right one, or it is refused with a code."""
    content = bytearray(FORMS[form]())
    for place, value in places:
        content[place % len(content)] = value
    try:
        image = take(store, bytes(content[:cut]))
    except CarrelError as error:
        assert error.code in ("image_invalid", "too_large", "insufficient_disk")
        assert error.hint
    else:
        for one in store.list():
            store.remove(one.image_id)
        assert image.entries
    assert os.listdir(store._staging) == []
