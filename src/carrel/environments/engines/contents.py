"""The content of a build, by which it is done once and shared: its Dockerfile, its arguments, and
the files that it copies.

Whatever is not certain counts in: a source with a variable or a link in it, a mount of a step, or a
Dockerfile that only stands on another image (which may have been told to copy) stands for the whole
context. So a build may be done again for nothing, and an old one is never taken for a new one.
"""

from __future__ import annotations

import fnmatch
import hashlib
import itertools
import json
import os
import platform
import re
import stat
from collections.abc import Iterable, Iterator

from carrel.domain.engines import BuildNetwork, ImageBuild
from carrel.domain.errors import EnvironmentRefused
from carrel.environments.dockerfile_syntax import Instruction, parse_script, split_words
from carrel.environments.engines.staging import staged_mode
from carrel.environments.files import MalformedFile
from carrel.linux.descriptors import Descriptor
from carrel.linux.openat2 import open_beneath

MOST_DOCKERFILE = 1 << 20
MOST_FILES = 1_000_000
"""More is no context that a person sends."""
PREPROCESSED = ".in"
"""So ends the name of a Dockerfile that podman and buildah give to the C preprocessor."""
_VERSION = "1"
"""Of this function; another gives all builds other keys."""
_NETWORKS = {
    BuildNetwork.NONE: frozenset({"none"}),
    BuildNetwork.ENGINE: frozenset({"none", "default"}),
}
_LANGUAGE = re.compile(rb"^\s*#\s*syntax\s*=(?!\s*docker/dockerfile[:@\s])", re.IGNORECASE | re.M)
_COMMENT = re.compile(rb"^[ \t]*#.*$", re.M)
_CONTINUED = re.compile(rb"[\\`][ \t]*\r?\n\s*")
_IN_WORDS = re.compile(rb"[\\`'\"]")
"""Engines take these out of the words of a step's options."""
_TARGETS = frozenset({"target", "dst", "destination"})
_PLAIN = _TARGETS | {"type", "sharing", "mode", "uid", "gid", "ro", "rw", "readonly", "size"}
_KINDS = frozenset({"bind", "cache", "tmpfs"})
"""Without a source, what is bound is the context itself."""
_PLACE = re.compile(r"(?:/[A-Za-z0-9_.+-]+)+")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_UNSURE = frozenset("$[]\\`{}\"'<")


def build_key(build: ImageBuild) -> str:
    """Raises `EnvironmentRefused` when the Dockerfile or the context cannot be read, or the
    context has too many files. Blocking."""
    root = _root(build)
    with Descriptor(root) as project:
        if build.image:
            return _with_features(build, project, b"")
        dockerfile = _read(project, build.dockerfile)
        context = _folder(project, build.context)
        with Descriptor(context):
            sources = None if _is_translated(build, dockerfile) else _sources(dockerfile)
            digest = hashlib.sha256()
            digest.update(
                json.dumps(
                    [
                        _VERSION,
                        platform.machine(),
                        build.target,
                        sorted(build.args.items()),
                        sorted(sources) if sources is not None else None,
                    ]
                ).encode()
            )
            digest.update(hashlib.sha256(dockerfile).digest())
            ignored = f"{build.dockerfile}.dockerignore", f"{build.dockerfile}.containerignore"
            # One of these says it in place of the context's own.
            has_own = _Context(project, digest).take_files(ignored)
            own = None if has_own else f"{os.path.basename(build.dockerfile)}.dockerignore"
            _Context(context, digest, own).take(sources)
            return _with_features(build, project, digest.digest())


def has_mounts(build: ImageBuild) -> bool:
    """Whether a step of its Dockerfile has mounts: podman and buildah take what such a step has
    made in an earlier build, whatever was in its mounts then. Raises as `build_key`."""
    steps = _steps(build)
    return steps is None or any("--mount" in step for step in steps)


def check_networks(build: ImageBuild) -> None:
    """Newer engines take the host's network from a step that asks for it. Raises
    `EnvironmentRefused` unless whoever builds has said so, and as `build_key`."""
    if build.network is BuildNetwork.HOST:
        return
    if build.dockerfile.endswith(PREPROCESSED):
        raise EnvironmentRefused(
            f"{build.dockerfile} is for a preprocessor, so nobody can tell what its steps reach.",
            hint="Build from what that makes of it, or with --build-network host.",
        )
    for step in _steps(build) or ():
        for word in itertools.takewhile(lambda one: one.startswith("--"), step.split()):
            wanted = word.removeprefix("--network=").strip("\"'")
            if wanted != word and wanted not in _NETWORKS[build.network]:
                raise EnvironmentRefused(
                    f"A step of {build.dockerfile} asks for the network {wanted[:40]!r}.",
                    hint="Remove that, or build with --build-network host.",
                )


def check_mounts(build: ImageBuild, engine: str) -> None:
    """For an engine whose mounts of steps lead out of the container: through a link of an image or
    of the project, say, to all that the engine sees, where it is root. Caches, memory and the
    whole context remain. The text is looked at as the engine may read it, whatever else is in it.
    Raises `EnvironmentRefused`, and as `build_key`."""
    with Descriptor(_root(build)) as project:
        dockerfile = _read(project, build.dockerfile)
    if build.dockerfile.endswith(PREPROCESSED):
        raise EnvironmentRefused(
            f"{build.dockerfile} is for a preprocessor, so nobody can tell what its steps mount.",
            hint="Build from what that makes of it.",
        )
    text = _IN_WORDS.sub(b"", _CONTINUED.sub(b"", _COMMENT.sub(b"", dockerfile)))
    caches: list[str] = []
    for word in re.findall(rb"--mount\S*", text):
        kind, target = _plain_mount(word.decode("utf-8", "replace"))
        others = [one for one in caches if one != target]
        if not kind or any(_below(one, target) or _below(target, one) for one in others):
            raise EnvironmentRefused(
                f"A step of {build.dockerfile} has a mount that leads out of the containers of "
                f"{engine}: {word[:80].decode('utf-8', 'replace')!r}.",
                hint="Use podman 5.4, buildah 1.39 or docker, or remove the mount: only caches, "
                "and the whole context, without an id, a source or `from` are mounted by this one.",
            )
        caches += [target] if kind == "cache" else []


def _plain_mount(word: str) -> tuple[str, str]:
    """Its kind and target; empty, where it is more than a folder of its own."""
    flag, _, options = word.partition("=")
    pairs = [one.partition("=")[::2] for one in options.split(",")]
    found = dict(pairs)
    targets = [value for key, value in pairs if key in _TARGETS]
    plain = len(found) == len(pairs) and found.keys() <= _PLAIN and len(targets) == 1
    if flag != "--mount" or not plain or found.get("type", "bind") not in _KINDS:
        return "", ""
    target = targets[0].rstrip("/")
    clean = _PLACE.fullmatch(target) and os.path.normpath(target) == target
    return (found.get("type", "bind"), target) if clean else ("", "")


def _below(path: str, folder: str) -> bool:
    return path.startswith(f"{folder}/")


def _steps(build: ImageBuild) -> list[str] | None:
    """What stands behind each RUN; None where that cannot be told."""
    with Descriptor(_root(build)) as project:
        dockerfile = _read(project, build.dockerfile)
    if build.dockerfile.endswith(PREPROCESSED):
        return None
    try:
        script = parse_script(dockerfile.decode("utf-8", "replace"))
    except MalformedFile:
        return None
    return [one.rest for one in script.instructions if one.keyword == "RUN"]


def _with_features(build: ImageBuild, project: int, image: bytes) -> str:
    """With the features, and all that is beside the file that names them: some may be there."""
    if not build.features:
        return image.hex()
    asked = [(one.reference, sorted(one.options.items())) for one in build.features]
    about = json.dumps([_VERSION, platform.machine(), build.image, asked])
    digest = hashlib.sha256(image + about.encode())
    beside = os.path.dirname(build.configuration)
    _Context(project, digest).take(frozenset({beside}) if beside else None)
    return digest.hexdigest()


def _root(build: ImageBuild) -> int:
    try:
        return os.open(build.project, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise EnvironmentRefused(f"{build.project} cannot be opened: {error.strerror}.") from None


def _read(project: int, path: str) -> bytes:
    try:
        with Descriptor(open_beneath(project, os.fsencode(path))) as place:
            if not stat.S_ISREG(os.fstat(place).st_mode):
                raise EnvironmentRefused(f"{path} is not a file.", hint="Name a Dockerfile.")
            with open(os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC), "rb") as file:
                data = file.read(MOST_DOCKERFILE + 1)
    except OSError as error:
        raise _unreadable(path, error) from None
    if len(data) > MOST_DOCKERFILE:
        raise EnvironmentRefused(f"{path} has more than a megabyte.", hint="Name a Dockerfile.")
    return data


def _folder(project: int, path: str) -> int:
    try:
        with Descriptor(open_beneath(project, os.fsencode(path))) as place:
            return os.open(f"/proc/self/fd/{place}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: str, error: OSError) -> EnvironmentRefused:
    return EnvironmentRefused(
        f"{path} of the project cannot be read: {error.strerror}.",
        hint="It must be there, and inside the project.",
    )


# What it copies


def _is_translated(build: ImageBuild, dockerfile: bytes) -> bool:
    """Whether its steps are others than those that stand there: by the preprocessor, or by a
    language of its own."""
    return build.dockerfile.endswith(PREPROCESSED) or _LANGUAGE.search(dockerfile) is not None


def _sources(dockerfile: bytes) -> frozenset[str] | None:
    """The paths and patterns of its COPY and ADD, in the context; None: all of it."""
    try:
        script = parse_script(dockerfile.decode("utf-8", "replace"))
    except MalformedFile:
        return None
    found: set[str] = set()
    keywords = {one.keyword for one in script.instructions}
    if not keywords & {"RUN", "COPY", "ADD"} or "ONBUILD" in keywords:
        return None
    for instruction in script.instructions:
        if instruction.keyword == "RUN" and "--mount" in instruction.rest:
            return None
        if instruction.keyword in ("COPY", "ADD"):
            copied = _copied(instruction, script.escape)
            if copied is None:
                return None
            found |= copied
    return frozenset(found)


def _copied(instruction: Instruction, escape: str) -> set[str] | None:
    words = split_words(instruction.rest, escape)
    options = [word for word in words if word.startswith("--")]
    if any(word.startswith("--from") for word in options):
        return set()
    words = [word for word in words if not word.startswith("--")]
    if not words or _UNSURE & set("".join(words)):
        return None
    sources = [os.path.normpath("/" + word).lstrip("/") for word in words[:-1] if "://" not in word]
    return set(sources) if all(sources) else None


# The files


class _Context:
    """Of a project as it is, or of the copy of it that is built from: both have the same key. What
    is no file, folder or link is in no copy, and what vanishes meanwhile neither."""

    def __init__(self, root: int, digest: hashlib._Hash, own_ignore: str | None = None) -> None:
        self._root = root
        self._digest = digest
        self._count = 0
        self._ignored = self._plainly_ignored(own_ignore)

    def _plainly_ignored(self, own_ignore: str | None) -> frozenset[str]:
        """Paths that no engine gets, as far as that is certain: without patterns, exceptions and
        another file that says it in place of this one. None: this is no context of a build."""
        if own_ignore is None:
            return frozenset()
        others = any(map(self._kind, (".containerignore", own_ignore)))
        if others or not stat.S_ISREG(self._kind(".dockerignore")):
            return frozenset()
        lines = _read(self._root, ".dockerignore").decode("utf-8", "replace").splitlines()
        words = [line.strip() for line in lines if not line.startswith("#")]
        if any(word.startswith("!") for word in words):
            return frozenset()
        plain = [word for word in words if word and not _UNSURE & set(word) and "*" not in word]
        return frozenset(os.path.normpath("/" + one).lstrip("/") for one in plain if "?" not in one)

    def take(self, sources: frozenset[str] | None) -> None:
        if sources is None:
            self._tree("")
            return
        ignored = (name for name in (".dockerignore", ".containerignore") if self._kind(name))
        for path in sorted({*ignored, *self._matching(sources)}):
            self._entry(path)

    def take_files(self, names: Iterable[str]) -> bool:
        """Those that are there, if any is."""
        there = [name for name in names if self._kind(name)]
        for name in there:
            self._entry(name)
        return bool(there)

    def _matching(self, sources: frozenset[str]) -> Iterator[str]:
        for source in sources:
            found = [""]
            for part in source.split("/"):
                found = [
                    os.path.join(folder, name)
                    for folder in found
                    for name in self._names(folder, part)
                ]
            yield from found

    def _names(self, folder: str, part: str) -> list[str]:
        if "*" not in part and "?" not in part:
            return [part] if self._kind(os.path.join(folder, part)) else []
        if not stat.S_ISDIR(self._kind(folder or ".")):
            return []
        return [name for name in self._listing(folder) if fnmatch.fnmatchcase(name, part)]

    def _kind(self, path: str) -> int:
        """Of the file itself; of what it leads to when there is a link on the way. 0: nothing."""
        try:
            with Descriptor(open_beneath(self._root, os.fsencode(path), follow=False)) as place:
                return os.fstat(place).st_mode
        except OSError:
            return 0

    def _listing(self, folder: str) -> list[str]:
        try:
            with (
                Descriptor(open_beneath(self._root, os.fsencode(folder or "."))) as place,
                Descriptor(os.open(f"/proc/self/fd/{place}", _FOLDER)) as descriptor,
            ):
                return sorted(os.listdir(descriptor))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unreadable(folder, error) from None

    def _tree(self, folder: str) -> None:
        pending = [folder]
        while pending:
            at = pending.pop()
            for name in self._listing(at):
                path = os.path.join(at, name)
                if self._one(path):
                    pending.append(path)

    def _entry(self, path: str) -> None:
        """With what is below it. What a link leads to may be anywhere in the context."""
        kind = self._kind(path)
        if stat.S_ISLNK(kind):
            self._tree("")
        elif self._one(path):
            self._tree(path)

    def _one(self, path: str) -> bool:
        """Whether it is a folder."""
        if path in self._ignored:
            return False
        self._count += 1
        if self._count > MOST_FILES:
            raise EnvironmentRefused(
                f"The context of the build has more than {MOST_FILES:,} files.",
                hint="Name a smaller context.",
            )
        raw = os.fsencode(path)
        try:
            place = open_beneath(self._root, raw, follow=False)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _unreadable(path, error) from None
        with Descriptor(place):
            mode = os.fstat(place).st_mode
            content = b""
            if stat.S_ISLNK(mode):
                content = os.readlink(b"", dir_fd=place)
            elif stat.S_ISREG(mode):
                mode, content = stat.S_IFREG | staged_mode(mode), _content(place)
            elif stat.S_ISDIR(mode):
                mode = stat.S_IFDIR | staged_mode(mode)
            else:
                return False
            self._digest.update(b"%d %o %d " % (len(raw), mode, len(content)) + raw + content)
            return stat.S_ISDIR(mode)


def _content(place: int) -> bytes:
    try:
        opened = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable("A file", error) from None
    with open(opened, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
