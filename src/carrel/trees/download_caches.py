"""Downloads that spaces of one project share: what one has fetched, the next need not fetch again.

A space may write what it likes into its own caches, and nobody else is to get that. So only files
that prove themselves are taken from there, and they are shown read-only:

- npm names what it keeps by the SHA-512 of it, and asks for it by that name.
- pip names what it keeps by its address. The public index and its mirrors have the digest of a file
  in its address, so a file that has the digest that its address says is the file of that address.
  All that pip reads beside the file itself is written here, and nothing of it is the space's.
- cargo names what it keeps by registry, name and version, and believes it. The `Cargo.lock` of a
  base says which digest each must have: a new space gets those that have it, and no others.

uv keeps packages unpacked, and nothing with a digest that an index or a lock file names.
Indexes and all else that is kept by name alone is not taken: it would have to be believed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any, NamedTuple

from carrel.domain.cleanup import Action
from carrel.domain.errors import PathInvalid
from carrel.domain.runtimes import Bind
from carrel.domain.trees import Base
from carrel.trees.drivers.common import note_prefix, open_roots
from carrel.trees.folders import ENTRY_ERRORS, Root
from carrel.trees.layers import LayerEntry, Layers

SHOWN_AT = "/run/carrel-downloads"
"""Where a sandbox finds them; the caches in its home have links to there."""
MOST_FILES = 2000
"""Of one project: each is a link in every new home."""
MOST_FILE_BYTES = 512 << 20
MOST_PAGE_BYTES = 16 << 20
"""Of a page of an index, unpacked. The largest have some thousand files."""
MOST_LOOKED_AT = 50_000
"""Names in a space's caches."""
LOOK_S = 2.0
"""For a look at the caches of spaces: somebody waits for a new one."""
RARELY = 20
"""A space is looked at again after so many times what the last look took."""
MOST_LOOKS = 10_000
"""Homes of which it is remembered."""
SHARE = 4
"""One project may take so much of what all may: one part of this many."""
UNUSED_S = 30 * 86400.0
DRAFT_S = 3600.0
"""What a daemon that died was about to add is older than that."""
VERB = "remove downloads"
_CHUNK = 1 << 20
_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"

NPM = ".npm/_cacache/content-v2/sha512"
PIP = ".cache/pip"
WHOLE, SPLIT = "http", "http-v2"
"""pip's own names. Before pip 23.3 an answer is one file, since then its body is another."""
CARGO = ".cargo/registry/cache"
LOCK = "Cargo.lock"
MOST_LOCK_BYTES = 4 << 20
"""The largest have a thousand packages, in some hundred kilobytes."""
MOST_LOCKS = 20
"""In the folders of a project's root, beside that in the root itself."""
_NPM_NAME = re.compile(r"[0-9a-f]{128}")
_PIP_NAME = re.compile(r"[0-9a-f]{56}")
_CRATE = re.compile(r"[\w.-]{1,70}-[0-9a-f]{16}/[\w.+-]{1,90}\.crate", re.A)
"""The folder of a registry, and what cargo calls a file in it."""
_KEPT = re.compile(
    r"((?:npm|http|http-v2)-[0-9a-f]+(?:\.body)?|crate-[\w.=+-]+=[0-9a-f]{64})\.([0-9]+)", re.A
)
"""A file here, with its size: one that has another was being written when the machine went down."""
_WHOLE = re.compile(
    rb"cc=4,\x82\xa8response[\x80-\x8f]\xa4body(?:\xc4(.)|\xc5(..)|\xc6(....))", re.S
)
_LINK = re.compile(
    rb"https?://[a-z0-9._:-]{1,200}/(?:[\w.~%+@-]{1,100}/){0,12}?"
    rb"([0-9a-f]{2})/([0-9a-f]{2})/([0-9a-f]{60})/[\w.~%+!-]{1,240}"
    rb"\.(?:whl|zip|egg|tar\.gz|tar\.bz2)(?![\w.~%+!-])"
)
"""The address of a distribution, with its BLAKE2b digest of 32 bytes. That of what is said of it
(`….whl.metadata`) has the same digest, which is not its own. Every part has a bound: strangers
write pages, too."""
_LOCKED = re.compile(
    rb'^\[\[package\]\]\nname = "([\w-]{1,64})"\nversion = "([\w.+-]{1,64})"\n'
    rb'source = "[^"\n]*"\nchecksum = "([0-9a-f]{64})"$',
    re.M,
)
"""As cargo writes it, which people do not."""


class _Found(NamedTuple):
    """A file in the cache of a space."""

    path: str
    name: str
    """By which its package manager finds it, without the folders."""


class _Kept(NamedTuple):
    name: str
    size: int
    added_at: float


class _Look(NamedTuple):
    at: float
    again: float
    """By the monotonic clock: when the next may be."""


@dataclass
class DownloadCaches:
    """Implements `carrel.domain.collaborators.Downloads`. Blocking. A project has a folder, named
    by its key; files in it are never changed, only added and removed."""

    folder: Path
    most_bytes: int
    """Of all projects together; 0: nothing is shared."""
    is_full: Callable[[], bool]
    """Whether the disk is."""
    _looks: dict[Path, _Look] = field(default_factory=dict)
    """The last one, by home."""

    def shown(self, key: str) -> Bind:
        return Bind(Path(os.path.realpath(self.folder), key), SHOWN_AT, if_real=True)

    def links(
        self, key: str, homes: Mapping[Path, float] | None = None, base: Base | None = None
    ) -> dict[str, str]:
        """What a new home gets: links to all that is there, with what other spaces have fetched in
        these homes, in which something last ran at that time; of crates what the base asks for."""
        if not self.most_bytes:
            return {}
        place = self.folder / key
        self.folder.mkdir(mode=0o700, exist_ok=True)
        place.mkdir(mode=0o755, exist_ok=True)
        os.utime(place)
        until = time.monotonic() + LOOK_S
        for home, ran_at in (homes or {}).items():
            if home not in self._looks or self._looks[home].at <= ran_at:
                self.gather(key, home, until)
        kept = _kept(place)
        crates = {name for name in kept if name.startswith("crate-")}
        locked = _locked(base) if crates and base is not None else {}
        return {
            _in_home(name): f"{SHOWN_AT}/{one.name}"
            for name, one in kept.items()
            if name not in crates or locked.get(name.split("=")[1]) == name[-64:]
        }

    def gather(self, key: str, home: Path, until: float | None = None) -> None:
        """Takes over what was fetched in a home, as far as it proves itself and there is room.
        Raises nothing: a home may be anything."""
        at, began = time.time(), time.monotonic()
        until = until or began + LOOK_S
        again = self._looks[home].again if home in self._looks else 0.0
        if not self.most_bytes or began >= until or began < again or self.is_full():
            return
        with contextlib.suppress(OSError, _Enough), Root.at(home) as root:
            gathering = _Gathering(root, self.folder / key, self.most_bytes // SHARE, until)
            gathering.take_npm()
            gathering.take_cargo()
            for kind in (WHOLE, SPLIT):
                gathering.take_pip(kind)
        now = time.monotonic()
        self._looks[home] = _Look(at, now + RARELY * (now - began))
        if len(self._looks) > MOST_LOOKS:
            del self._looks[next(iter(self._looks))]

    def tidy(self, used: Collection[str], *, everything: bool, dry_run: bool) -> list[Action]:
        """Removes what is too old or too much. Projects whose keys are `used` have spaces, and keep
        theirs, but for the older half of what is full. With `everything` all others go."""
        found, dropped = [], []
        for place in self._places():
            files = sorted(_kept(place).values(), key=lambda one: one.added_at)
            size = sum(one.size for one in files)
            if len(files) >= MOST_FILES or size > self.most_bytes // SHARE * 7 // 8:
                older = files[: len(files) // 2 + 1]
                if place.name in used:
                    # cargo does not replace a link that leads nowhere.
                    older = [one for one in older if not one.name.startswith("crate-")]
                freed = sum(one.size for one in older)
                why = "it was full; its older half goes"
                dropped.append(Action(VERB, place.name, why, bytes_freed=freed))
                size -= freed
                for one in () if dry_run else older:
                    (place / one.name).unlink(missing_ok=True)
            found.append((place.stat().st_mtime, place, size))
        total, now = sum(size for _, _, size in found), time.time()
        for used_at, place, size in sorted(found):
            too_much = total > self.most_bytes
            if place.name not in used and (everything or too_much or used_at < now - UNUSED_S):
                why = "beyond the limit of all caches" if too_much else "no space uses it"
                dropped.append(Action(VERB, place.name, why, bytes_freed=size))
                total -= size
                if not dry_run:
                    shutil.rmtree(place, ignore_errors=True)
        return dropped

    def _places(self) -> list[Path]:
        try:
            return [path for path in self.folder.iterdir() if path.is_dir()]
        except FileNotFoundError:
            return []


class _Enough(Exception):
    """The time, the room or the patience for a look is used up."""


@dataclass
class _Gathering:
    """One look at one home."""

    root: Root
    place: Path
    most_bytes: int
    until: float
    looked_at: int = 0
    known: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.known = {name: one.size for name, one in _kept(self.place).items()}

    def take_npm(self) -> None:
        """Archives only: what an index says of a package is asked for again."""
        for one in self._files(NPM, 2):
            if _NPM_NAME.fullmatch(one.name) and f"npm-{one.name}" not in self.known:
                with contextlib.suppress(OSError):
                    if b"".join(self._read(one, 0, 2)) == _GZIP:
                        self._take(one, f"npm-{one.name}", hashlib.sha512(), one.name)

    def take_cargo(self) -> None:
        """By what it is: whoever asks for one knows the digest."""
        for one in self._files(CARGO, 1, joined=False):
            folder, _, file = one.path.removeprefix(f"{CARGO}/").partition("/")
            if _CRATE.fullmatch(f"{folder}/{file}") and self._size(one) <= MOST_FILE_BYTES:
                with contextlib.suppress(OSError):
                    check = hashlib.sha256()
                    for piece in self._read(one, 0, MOST_FILE_BYTES):
                        check.update(piece)
                    name = f"crate-{folder}={file}={check.hexdigest()}"
                    if name not in self.known:
                        self._take(one, name, hashlib.sha256(), check.hexdigest())

    def take_pip(self, kind: str) -> None:
        """Pages of the index say which addresses there are. It is no matter who wrote them: an
        address that is believed is one that says what is there."""
        files = [*self._files(f"{PIP}/{kind}", 5, joined=False)]
        bodies = {
            name: one
            for one in files
            if _PIP_NAME.fullmatch(name := one.name.removesuffix(".body"))
            and one.name.endswith(".body") == (kind == SPLIT)
        }
        digests: dict[str, str] = {}
        for one in bodies.values():
            digests |= _addresses(self._page(one, kind), bodies)
        for name, digest in digests.items():
            if f"{kind}-{name}" not in self.known:
                with contextlib.suppress(OSError):
                    self._take_answer(bodies[name], kind, name, digest)

    def _take_answer(self, one: _Found, kind: str, name: str, digest: str) -> None:
        check = hashlib.blake2b(digest_size=32)
        if kind == WHOLE:
            self._take(one, f"{kind}-{name}", check, digest, self._body(one))
        elif self._take(one, body := f"{kind}-{name}.body", check, digest):
            self._write(f"{kind}-{name}", b"".join(_answer(self.known[body], b"")))

    def _files(self, top: str, depth: int, *, joined: bool = True) -> Iterator[_Found]:
        """All that are so deep below a folder. `joined`: names begin with those of folders."""
        folders = [(top, "")]
        for level in range(depth + 1):
            below = []
            for path, name in folders:
                for entry in self._entries(path):
                    found = f"{name}{entry.name}" if joined else entry.name
                    if level < depth and entry.is_dir(follow_symlinks=False):
                        below.append((f"{path}/{entry.name}", found))
                    elif level == depth and entry.is_file(follow_symlinks=False):
                        yield _Found(f"{path}/{entry.name}", found)
            folders = below

    def _entries(self, path: str) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(self.root.folder(path)) as entries:
                for entry in entries:
                    self._go_on()
                    self.looked_at += 1
                    yield entry
        except OSError as error:
            if error.errno not in ENTRY_ERRORS:
                raise

    def _go_on(self) -> None:
        if time.monotonic() > self.until or self.looked_at > MOST_LOOKED_AT:
            raise _Enough

    def _page(self, one: _Found, kind: str) -> bytes:
        """The text of an answer; nothing if it is none."""
        try:
            offset = self._body(one)[0] if kind == WHOLE else 0
            if b"".join(self._read(one, offset, len(_ZIP))) == _ZIP:
                return b""
            content = b"".join(self._read(one, offset, MOST_PAGE_BYTES))
            if content.startswith(_GZIP):
                content = zlib.decompressobj(31).decompress(content, MOST_PAGE_BYTES)
        except (OSError, zlib.error):
            return b""
        return content if content.lstrip()[:1] in (b"<", b"{") else b""

    def _body(self, one: _Found) -> tuple[int, int]:
        """Where it is in an answer that is one file. Raises OSError if it is none."""
        found = _WHOLE.match(b"".join(self._read(one, 0, 64)))
        if found is None:
            raise FileNotFoundError(one.path)
        size = next(one for one in found.groups() if one is not None)
        return found.end(), int.from_bytes(size)

    def _size(self, one: _Found) -> int:
        found = self.root.status(one.path)
        return found.st_size if found is not None else 0

    def _read(self, one: _Found, offset: int, size: int) -> Iterator[bytes]:
        descriptor, _ = self.root.open_regular(one.path)
        with open(descriptor, "rb", buffering=0) as file:
            file.seek(offset)
            while size > 0 and (piece := file.read(min(size, _CHUNK))):
                self._go_on()
                size -= len(piece)
                yield piece

    def _take(
        self, one: _Found, name: str, check: Any, digest: str, part: tuple[int, int] | None = None
    ) -> bool:
        """Copies a file, or a part of it with what belongs around that. What is checked is the
        copy: the space may write meanwhile."""
        offset, size = part or (0, self._size(one))
        if size > MOST_FILE_BYTES or self._no_room(size):
            return False
        first, last = _answer(size, b"\xc6" + size.to_bytes(4)) if part else (b"", b"")
        draft = self.place / f".{secrets.token_hex(8)}"
        try:
            with open(draft, "xb") as file:
                file.write(first)
                for piece in self._read(one, offset, size):
                    check.update(piece)
                    file.write(piece)
                file.write(last)
                os.fchmod(file.fileno(), 0o444)
            if check.hexdigest() != digest:
                return False
            self._keep(draft, name)
            return True
        finally:
            draft.unlink(missing_ok=True)

    def _write(self, name: str, content: bytes) -> None:
        draft = self.place / f".{secrets.token_hex(8)}"
        draft.write_bytes(content)
        draft.chmod(0o444)
        self._keep(draft, name)

    def _keep(self, draft: Path, name: str) -> None:
        self.known[name] = size = draft.stat().st_size
        draft.rename(self.place / f"{name}.{size}")

    def _no_room(self, size: int) -> bool:
        full = len(self.known) >= MOST_FILES
        return full or sum(self.known.values()) + size > self.most_bytes


def _addresses(page: bytes, wanted: Collection[str]) -> dict[str, str]:
    """The digests that addresses on a page name, by the name that pip gives to the address."""
    found = {}
    for link in _LINK.finditer(page):
        name = hashlib.sha224(link[0]).hexdigest()
        if name in wanted:
            found[name] = b"".join(link.groups()).decode()
    return found


def _locked(base: Base) -> dict[str, str]:
    """The digests of the crates that lock files of a base name, by the file. Not of those for which
    they name several: of two registries, perhaps."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError, PathInvalid), open_roots(base.layers) as roots:
        layers = Layers(roots, note_prefix())
        top = layers.top()
        folders = [one for _, one in sorted(layers.children(top).items()) if one.is_folder]
        for folder in (top, *folders[:MOST_LOCKS]):
            lock = layers.child(folder, LOCK)
            for name, version, digest in _LOCKED.findall(_text(lock) if lock else b""):
                file = f"{name.decode()}-{version.decode()}.crate"
                known = found.setdefault(file, digest.decode())
                found[file] = known if known == digest.decode() else ""
    return found


def _text(entry: LayerEntry) -> bytes:
    """Of a file; nothing of anything else."""
    if not entry.is_file or entry.status.st_size > MOST_LOCK_BYTES:
        return b""
    place = entry.content
    with open(place.root.open_file(place.path), "rb") as file:
        return file.read(MOST_LOCK_BYTES)


def _answer(size: int, inside: bytes) -> tuple[bytes, bytes]:
    """An answer of a server as pip keeps it (`cc=4`, in MessagePack), before and after its body.
    `inside` is how a body begins that is in the same file."""
    headers = {
        "Date": formatdate(usegmt=True),
        "Content-Type": "application/octet-stream",
        "Content-Length": str(size),
        "Cache-Control": "max-age=365000000, immutable, public",
    }
    packed = b"".join(_packed(text) for pair in headers.items() for text in pair)
    first = b"cc=4,\x82" + _packed("response") + b"\x86" + _packed("body") + (inside or b"\xc4\x00")
    last = _packed("headers") + bytes([0x80 | len(headers)]) + packed
    last += _packed("status") + b"\xcc\xc8" + _packed("version") + b"\x0b"
    last += _packed("reason") + _packed("OK") + _packed("decode_content") + b"\xc2"
    return first, last + _packed("vary") + b"\x80"


def _packed(text: str) -> bytes:
    return b"\xd9" + bytes([len(text)]) + text.encode("ascii")


def _in_home(kept: str) -> str:
    """Where the package manager looks for it."""
    if kept.startswith("crate-"):
        folder, file, _ = kept.removeprefix("crate-").split("=")
        return f"{CARGO}/{folder}/{file}"
    kind, _, name = kept.rpartition("-")
    if kind == "npm":
        return f"{NPM}/{name[:2]}/{name[2:4]}/{name[4:]}"
    return f"{PIP}/{kind}/{'/'.join(name[:5])}/{name}"


def _kept(place: Path) -> dict[str, _Kept]:
    """What is there, by name. Forgets what was never completed."""
    found = {}
    with contextlib.suppress(FileNotFoundError), os.scandir(place) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            named = _KEPT.fullmatch(entry.name)
            if named and int(named[2]) == status.st_size:
                found[named[1]] = _Kept(entry.name, status.st_size, status.st_mtime)
            elif named or status.st_mtime < time.time() - DRAFT_S:
                (place / entry.name).unlink(missing_ok=True)
    return found
