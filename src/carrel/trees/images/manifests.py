"""What an archive says of the images in it: indexes, manifests and configurations, of OCI and of
`docker save`. All of it is a stranger's JSON: bounded, of known types, and checked by digest."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from carrel.domain.errors import ImageInvalid
from carrel.domain.images import ImageConfig, ImageLimits, Platform
from carrel.domain.services import LEAST_INTERVAL_S, HealthCheck
from carrel.domain.tar import shown
from carrel.trees.images.archives import FilePart, ImageFiles, OnBytes, broken

_T = TypeVar("_T")
_MAX_JSON = 4 << 20
"""What registries take as a manifest at most."""
_MAX_DEPTH = 4
"""Of indexes in indexes; one in one is known to be made."""
_MAX_MANIFESTS = 1000
_MAX_WORDS = 4096
"""Of each list in a configuration."""
_LAYOUT, _INDEX, _SAVED = "oci-layout", "index.json", "manifest.json"
_DIGEST = re.compile(r"(sha256):([0-9a-f]{64})|(sha512):([0-9a-f]{128})")
_NAMED = re.compile(r"(?:.*/)?([0-9a-f]{64})(?:\.json)?")
_ATTESTATION = "vnd.docker.reference.type"
_NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
_ARCHITECTURES = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "armv7l": "arm",
    "armv6l": "arm",
    "i686": "386",
}
"""Of the kernel's words, those that OCI has others for."""
_USUAL_VARIANTS = ("", "v1", "v7", "v8")
_OLD_KERNEL_NAME = {"arm": "v7"}


def this_platform() -> Platform:
    machine = os.uname().machine
    architecture = _ARCHITECTURES.get(machine, machine)
    return Platform("linux", architecture, _OLD_KERNEL_NAME.get(architecture, ""))


# What stands in them


class _PlatformJson(msgspec.Struct):
    os: str = ""
    architecture: str = ""
    variant: str = ""


class _Descriptor(msgspec.Struct):
    digest: str
    size: int = -1
    media: str = msgspec.field(default="", name="mediaType")
    platform: _PlatformJson | None = None
    annotations: dict[str, str] | None = None


class _Index(msgspec.Struct):
    manifests: list[_Descriptor] | None = None


class _Manifest(msgspec.Struct):
    config: _Descriptor
    layers: list[_Descriptor] | None = None


class _SavedImage(msgspec.Struct):
    config: str = msgspec.field(name="Config")
    layers: list[str] | None = msgspec.field(default=None, name="Layers")
    tags: list[str] | None = msgspec.field(default=None, name="RepoTags")


class _Rootfs(msgspec.Struct):
    diff_ids: list[str] | None = None


_Words = list[str] | None


class _Health(msgspec.Struct):
    """Times are in nanoseconds, and 0 where nothing is said."""

    test: _Words = msgspec.field(default=None, name="Test")
    interval: int = msgspec.field(default=0, name="Interval")
    timeout: int = msgspec.field(default=0, name="Timeout")
    start_period: int = msgspec.field(default=0, name="StartPeriod")
    retries: int = msgspec.field(default=0, name="Retries")


class _Container(msgspec.Struct):
    user: str | None = msgspec.field(default="", name="User")
    env: _Words = msgspec.field(default=None, name="Env")
    workdir: str | None = msgspec.field(default="", name="WorkingDir")
    entrypoint: _Words = msgspec.field(default=None, name="Entrypoint")
    cmd: _Words = msgspec.field(default=None, name="Cmd")
    ports: dict[str, msgspec.Raw] | None = msgspec.field(default=None, name="ExposedPorts")
    labels: dict[str, str] | None = msgspec.field(default=None, name="Labels")
    volumes: dict[str, msgspec.Raw] | None = msgspec.field(default=None, name="Volumes")
    stop_signal: str | None = msgspec.field(default="", name="StopSignal")
    health: _Health | None = msgspec.field(default=None, name="Healthcheck")


class _Config(msgspec.Struct):
    architecture: str = ""
    os: str = ""
    variant: str = ""
    created: str | None = ""
    config: _Container | None = None
    rootfs: _Rootfs | None = None


# What is made of it


@dataclass(frozen=True)
class LayerPlan:
    """`digest` is that of the bytes in the archive, where it says one; `diff_id` that of the tar in
    them."""

    part: FilePart
    diff_id: str
    digest: str = ""


@dataclass(frozen=True)
class ImagePlan:
    """The lowest layer first. `made` is when the image was built."""

    config: ImageConfig
    layers: tuple[LayerPlan, ...]
    made: str = ""


def plan_image(
    files: ImageFiles, reference: str, limits: ImageLimits, on_bytes: OnBytes
) -> ImagePlan | None:
    """The image for this machine in an archive; None of one without any. Raises `ImageInvalid`."""
    plans = _Plans(files, reference, limits, on_bytes)
    if files.find(_LAYOUT) is not None and files.find(_INDEX) is not None:
        return plans.layout()
    saved = files.find(_SAVED)
    if saved is None:
        return None
    try:
        images = _decoded(_read(saved), list[_SavedImage], _SAVED)
    except ImageInvalid:
        # A program's root file system may have a file of that name.
        if files.find("etc/passwd") is not None or files.find("bin/sh") is not None:
            return None
        raise
    return plans.saved(images)


@dataclass(frozen=True)
class _Found:
    manifest: _Descriptor
    names: tuple[str, ...]
    platform: Platform | None


@dataclass
class _Plans:
    files: ImageFiles
    reference: str
    limits: ImageLimits
    on_bytes: OnBytes
    seen: int = 0

    # OCI

    def layout(self) -> ImagePlan:
        index = self.files.find(_INDEX)
        assert index is not None
        found = list(self._manifests(_decoded(_read(index), _Index, _INDEX), (), 0))
        wanted = self._named(found)
        chosen = _for_this_machine(wanted)
        manifest = _decoded(self._blob(chosen.manifest), _Manifest, "the manifest")
        if manifest.config.media and "image" not in manifest.config.media:
            raise broken(f"it holds {manifest.config.media[:100]!r}, which is no image")
        content = self._blob(manifest.config)
        layers = []
        for layer in manifest.layers or ():
            if "+encrypted" in layer.media:
                raise broken("its layers are encrypted", "Decrypt the image first.")
            layers.append((self._part(layer), layer.digest))
        return self._plan(content, layers)

    def _manifests(self, index: _Index, names: tuple[str, ...], depth: int) -> Iterator[_Found]:
        for one in index.manifests or ():
            self.seen += 1
            if self.seen > _MAX_MANIFESTS or depth > _MAX_DEPTH:
                raise broken("its indexes name more images than anybody needs")
            about = one.annotations or {}
            if _ATTESTATION in about:
                continue
            own = tuple(about[key] for key in _NAMES if about.get(key)) or names
            if "index" in one.media or "manifest.list" in one.media:
                inner = _decoded(self._blob(one), _Index, "an index")
                yield from self._manifests(inner, own, depth + 1)
            elif one.platform is None or not one.platform.os:
                yield _Found(one, own, None)
            else:
                said = one.platform
                yield _Found(one, own, Platform(said.os, said.architecture, said.variant))

    def _named(self, found: list[_Found]) -> list[_Found]:
        if not found:
            raise broken("there is no image in it")
        if not self.reference:
            return found
        named = [one for one in found if self.reference in one.names]
        if not named:
            raise _no_such(self.reference, {name for one in found for name in one.names})
        return named

    def _blob(self, descriptor: _Descriptor) -> bytes:
        return _checked(_read(self._part(descriptor, quiet=True)), descriptor.digest)

    def _part(self, descriptor: _Descriptor, *, quiet: bool = False) -> FilePart:
        match = _DIGEST.fullmatch(descriptor.digest)
        if match is None:
            raise broken(f"{descriptor.digest[:100]!r} is no digest that is known")
        algorithm, value = match[1] or match[3], match[2] or match[4]
        hear = (lambda _: None) if quiet else self.on_bytes
        part = self.files.find(f"blobs/{algorithm}/{value}", hear)
        if part is None:
            raise broken(f"{descriptor.digest} is not in it", "Save the image again, completely.")
        if descriptor.size not in (-1, part.size):
            raise broken(f"{descriptor.digest} has another size than it should")
        return part

    # docker save

    def saved(self, images: list[_SavedImage]) -> ImagePlan:
        if self.reference:
            named = [one for one in images if self.reference in (one.tags or ())]
            if not named:
                raise _no_such(self.reference, {tag for one in images for tag in one.tags or ()})
            images = named
        if not images:
            raise broken("there is no image in it")
        if len({one.config for one in images}) > 1:
            raise _several([", ".join(one.tags or ()) or one.config for one in images])
        image = images[0]
        part = self.files.find(_clean(image.config))
        if part is None:
            raise broken(f"{image.config!r} is not in it")
        content = _read(part)
        named_by = _NAMED.fullmatch(image.config)
        if named_by is not None:
            _checked(content, f"sha256:{named_by[1]}")
        layers = []
        for name in image.layers or ():
            found = self.files.find(_clean(name), self.on_bytes)
            if found is None:
                raise broken(f"its layer {name!r} is not in it")
            layers.append((found, ""))
        return self._plan(content, layers)

    # Both

    def _plan(self, content: bytes, layers: list[tuple[FilePart, str]]) -> ImagePlan:
        said = _decoded(content, _Config, "the configuration")
        ids = (said.rootfs.diff_ids if said.rootfs else None) or []
        if len(ids) != len(layers):
            raise broken(f"it has {len(layers)} layers, and should have {len(ids)}")
        if not layers:
            raise broken("it has no layers, so there are no files")
        if len(layers) > self.limits.max_layers:
            raise broken(
                f"it has {len(layers)} layers, and {self.limits.max_layers} are allowed",
                "Squash the image into fewer layers.",
            )
        for diff_id in ids:
            if not _DIGEST.fullmatch(diff_id):
                raise broken(f"{diff_id[:100]!r} is no digest that is known")
        platform = None
        if said.os or said.architecture:
            platform = Platform(said.os or "linux", said.architecture, said.variant)
            if not _runs(platform):
                raise _for_others([platform])
        plans = tuple(
            LayerPlan(part, diff_id, digest)
            for (part, digest), diff_id in zip(layers, ids, strict=True)
        )
        return ImagePlan(_config(said.config, platform), plans, (said.created or "")[:64])


def _config(said: _Container | None, platform: Platform | None) -> ImageConfig:
    said = said or _Container()
    env = {}
    for pair in _words(said.env, "Env"):
        name, equals, value = pair.partition("=")
        if name and equals:
            env[name] = value
    return ImageConfig(
        user=_word(said.user, "User"),
        env=tuple(env.items()),
        workdir=_word(said.workdir, "WorkingDir"),
        entrypoint=_words(said.entrypoint, "Entrypoint"),
        cmd=_words(said.cmd, "Cmd"),
        ports=_words(said.ports, "ExposedPorts"),
        labels=tuple((said.labels or {}).items())[:_MAX_WORDS],
        volumes=_words(said.volumes, "Volumes"),
        stop_signal=_word(said.stop_signal, "StopSignal"),
        platform=platform,
        health=_health(said.health),
    )


_LONGEST_S = 3600.0
"""Between two checks, of one, and until they count."""
_MOST_RETRIES = 1000


def _health(said: _Health | None) -> HealthCheck | None:
    words = _words(said.test, "Healthcheck") if said is not None else ()
    if said is None or words[:1] not in (("CMD",), ("CMD-SHELL",)) or len(words) < 2:
        return None

    def seconds(nanoseconds: int, otherwise: float, least: float) -> float:
        return min(max(nanoseconds / 1e9, least), _LONGEST_S) if nanoseconds > 0 else otherwise

    return HealthCheck(
        words[1:] if words[0] == "CMD" else ("/bin/sh", "-c", words[1]),
        seconds(said.interval, 30.0, LEAST_INTERVAL_S),
        seconds(said.timeout, 30.0, 0.1),
        min(said.retries, _MOST_RETRIES) if said.retries > 0 else 3,
        seconds(said.start_period, 0.0, 0.0),
    )


def _word(text: str | None, what: str) -> str:
    if "\0" in (text or ""):
        raise broken(f"its {what} has a zero byte in it")
    return text or ""


def _words(found: list[str] | dict[str, msgspec.Raw] | None, what: str) -> tuple[str, ...]:
    if len(found or ()) > _MAX_WORDS:
        raise broken(f"its {what} has more than {_MAX_WORDS} entries")
    return tuple(_word(one, what) for one in found or ())


def _for_this_machine(found: list[_Found]) -> _Found:
    fitting = [one for one in found if one.platform is None or _runs(one.platform)]
    if not fitting:
        raise _for_others([one.platform for one in found if one.platform])
    said = [one for one in fitting if one.platform is not None] or fitting
    usual = [one for one in said if one.platform is None or _is_usual(one.platform)] or said
    if len({one.manifest.digest for one in usual}) > 1:
        raise _several([", ".join(one.names) or one.manifest.digest for one in usual])
    return usual[0]


def _runs(platform: Platform) -> bool:
    here = this_platform()
    return (platform.os, platform.architecture) == (here.os, here.architecture)


def _is_usual(platform: Platform) -> bool:
    return platform.variant in _USUAL_VARIANTS


def _for_others(platforms: list[Platform]) -> ImageInvalid:
    names = ", ".join(sorted({shown(str(one).encode()) for one in platforms})[:10])
    return broken(
        f"it is for {names}, and this machine is {this_platform()}",
        f"Build or save the image for {this_platform()}.",
    )


def _several(names: list[str]) -> ImageInvalid:
    return broken(
        f"it holds {len(names)} images: {', '.join(names[:10])[:1000]}",
        "Say which one with --reference, or save one alone.",
    )


def _no_such(reference: str, names: set[str]) -> ImageInvalid:
    return broken(
        f"there is no {reference!r} in it, but {', '.join(sorted(names)[:10])[:1000] or 'no name'}",
        "Give one of these names.",
    )


def _clean(name: str) -> str:
    return "/".join(part for part in name.split("/") if part not in ("", "."))


def _read(part: FilePart) -> bytes:
    if part.size > _MAX_JSON:
        raise broken(f"what describes it has {part.size} bytes, and {_MAX_JSON} are allowed")
    found = b""
    while piece := part.read(_MAX_JSON):
        found += piece
    return found


def _checked(content: bytes, digest: str) -> bytes:
    algorithm, _, value = digest.partition(":")
    if hashlib.new(algorithm, content).hexdigest() != value:
        raise broken(f"what should be {digest} is something else")
    return content


def _decoded(content: bytes, kind: type[_T], what: str) -> _T:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise broken(f"{what} cannot be read ({error})") from error
