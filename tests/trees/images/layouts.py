"""Archives of images, made as docker, podman and others make them, and some as nobody should."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import zstandard

from carrel.domain.images import ImageImport, ImageLimits, Images, RootImage
from carrel.domain.projects import ignore_progress
from carrel.trees.images.manifests import this_platform
from tests.trees.tars import entry, tar_of

Member = tuple[tarfile.TarInfo, bytes]
FOLDER, LINK, HARD, PIPE = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE
CONFIG = {
    "User": "app",
    "Env": ["PATH=/bin", "A=b=c"],
    "WorkingDir": "/srv",
    "Entrypoint": ["/bin/sh", "-c"],
    "Cmd": ["true"],
    "ExposedPorts": {"80/tcp": {}},
    "Labels": {"made": "here"},
    "Volumes": {"/var/data": {}},
    "StopSignal": "SIGINT",
}


def file(name: str, content: bytes = b"x", mode: int = 0o644, owner: int = 0) -> Member:
    info = entry(name, mode=mode)
    info.uid = info.gid = owner
    return info, content


def folder(name: str, mode: int = 0o755) -> Member:
    return entry(name, FOLDER, mode=mode), b""


def link(name: str, target: str) -> Member:
    return entry(name, LINK, target, 0o777), b""


def hard(name: str, target: str) -> Member:
    return entry(name, HARD, target), b""


def gone(name: str) -> Member:
    return file(name, b"")


def layer(*members: Member) -> bytes:
    return tar_of(*members)


def digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def config_of(layers: Iterable[bytes], **more: Any) -> bytes:
    here = this_platform()
    said = {
        "architecture": here.architecture,
        "os": here.os,
        "created": "2026-01-02T03:04:05Z",
        "config": CONFIG,
        "rootfs": {"type": "layers", "diff_ids": [digest(one) for one in layers]},
    }
    return json.dumps(said | more).encode()


class Layout:
    """The files of an OCI layout, to be changed before they are packed."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}
        self.manifests: list[dict[str, Any]] = []

    def blob(self, content: bytes, media: str) -> dict[str, Any]:
        named = digest(content)
        self.files[f"blobs/sha256/{named.partition(':')[2]}"] = content
        return {"mediaType": media, "digest": named, "size": len(content)}

    def image(
        self,
        layers: Iterable[bytes],
        pack: Callable[[bytes], bytes] = gzip.compress,
        config: bytes | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        layers = list(layers)
        said = config_of(layers) if config is None else config
        manifest = {
            "schemaVersion": 2,
            "config": self.blob(said, "application/vnd.oci.image.config.v1+json"),
            "layers": [
                self.blob(pack(one), "application/vnd.oci.image.layer.v1.tar") for one in layers
            ],
        }
        media = "application/vnd.oci.image.manifest.v1+json"
        return self.blob(json.dumps(manifest).encode(), media) | more

    def add(self, descriptor: Mapping[str, Any]) -> Layout:
        self.manifests.append(dict(descriptor))
        return self

    def nested(self, depth: int = 1) -> Layout:
        for _ in range(depth):
            inner = json.dumps({"manifests": self.manifests}).encode()
            self.manifests = [self.blob(inner, "application/vnd.oci.image.index.v1+json")]
        return self

    def all(self) -> dict[str, bytes]:
        return self.files | {"index.json": json.dumps({"manifests": self.manifests}).encode()}

    def tar(self) -> bytes:
        return tar_of(*(file(name, content) for name, content in self.all().items()))

    def write(self, place: Path) -> Path:
        for name, content in self.all().items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(content)
        return place


def oci(*layers: bytes, pack: Callable[[bytes], bytes] = gzip.compress) -> bytes:
    layout = Layout()
    return layout.add(layout.image(layers, pack)).tar()


def saved(*layers: bytes, config: bytes | None = None, names: tuple[str, ...] = ("x:1",)) -> bytes:
    """As `docker save` of old: layers are not compressed, and have no digest."""
    said = config_of(layers) if config is None else config
    name = hashlib.sha256(said).hexdigest() + ".json"
    members = [folder(f"l{number}") for number in range(len(layers))]
    members += [file(f"l{number}/layer.tar", one) for number, one in enumerate(layers)]
    paths = [f"l{number}/layer.tar" for number in range(len(layers))]
    manifest = json.dumps([{"Config": name, "RepoTags": list(names), "Layers": paths}])
    return tar_of(*members, file(name, said), file("manifest.json", manifest.encode()))


def zstd(content: bytes) -> bytes:
    return zstandard.compress(content)


def take(
    store: Images, content: bytes, name: str = "x", limits: ImageLimits | None = None
) -> RootImage:
    asked = ImageImport(name, io.BytesIO(content), "a test", limits=limits or ImageLimits())
    return store.take(asked, ignore_progress)


def listing(image: RootImage) -> dict[str, str]:
    """Each path, with what it is."""
    found = {}
    top = os.fsencode(image.folder)
    for above, folders, files in os.walk(top):
        for name in folders + files:
            path = os.path.join(above, name)
            found[os.fsdecode(os.path.relpath(path, top))] = _what(path)
    return found


def _what(path: bytes) -> str:
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return "-> " + os.fsdecode(os.readlink(path))
    if stat.S_ISREG(status.st_mode):
        with open(path, "rb") as opened:
            return os.fsdecode(opened.read(100))
    return {stat.S_IFDIR: "/", stat.S_IFIFO: "|"}[stat.S_IFMT(status.st_mode)]
