"""The images of one data folder: taken in, found, held by spaces, and removed.

    images/im_…/root          the files, in place for good once the folder is there
    images/im_…/root-N-U-G    those with the owners that the image says, of an ordinary user whose
                              range of ids begins at N; user U and group G are that user
    images/im_…/image.json    what is known of them
    images/names.json         which name is which image's
    images/holders/im_…/sp_…  an empty file: the space uses the image
    images/.staging/          what is being made or removed now

An image is made in the staging folder, forced to disk, and renamed. Whoever makes one has a lock
there, so what nobody has a lock for was left by a process that was killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from carrel.domain.errors import ImageInUse, ImageInvalid, ImageNotFound, TreeDamaged
from carrel.domain.images import (
    ImageConfig,
    ImageImport,
    ImageNote,
    RootImage,
    check_image_name,
    is_image_id,
)
from carrel.domain.projects import OnProgress, ignore_progress
from carrel.domain.systems import IdMap
from carrel.linux.descriptors import Descriptor
from carrel.linux.libc import call
from carrel.trees.bases.disk import no_room_as_error
from carrel.trees.images.taking import OWN_NUMBERS, TakenIds, TakenImage, take
from carrel.trees.locks import build_lock, try_lock
from carrel.trees.paths import sync_folder
from carrel.trees.removal import remove_tree

ROOT, FILE = "root", "image.json"
_COPYING = "copying.lock"
_NAMES, _HOLDERS, _STAGING, _LOCK = "names.json", "holders", ".staging", ".lock"
_FORMAT = 1
_HOLDER = re.compile(r"[A-Za-z0-9_-]{1,64}")
_EXACT_S = 60.0
"""So exactly it is known when an image was last used."""


class _Record(msgspec.Struct):
    """What image.json holds."""

    config: ImageConfig
    entries: int
    size_bytes: int
    created_at: float
    source: str
    made: str
    notes: tuple[ImageNote, ...]
    version: int = _FORMAT


class ImageStore:
    """Any number of threads and processes may use the same data folder at once."""

    def __init__(self, data: Path, ids: TakenIds = OWN_NUMBERS) -> None:
        """`ids`: of new images, for an ordinary user within its range of ids. Their own user is
        root then; `as_user` has them with another."""
        self._ids = ids
        self._images = data / "images"
        self._staging = self._images / _STAGING
        self._holders = self._images / _HOLDERS
        self.sweep()

    def _make(self) -> None:
        for folder in (self._images, self._staging, self._holders):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The users and modes of the files in there are an image's: nobody else may get to them.
        os.chmod(self._images, 0o700)

    def sweep(self) -> None:
        """Removes what killed processes left. What does not go now goes another time."""
        for path in self._staging.glob("*.lock"):
            with contextlib.suppress(OSError):
                lock = try_lock(path)
                if lock is not None:
                    with Descriptor(lock):
                        remove_tree(path.with_suffix(""))
                        path.unlink(missing_ok=True)

    # Taking in

    def take(self, asked: ImageImport, progress: OnProgress = ignore_progress) -> RootImage:
        check_image_name(asked.name)
        with no_room_as_error(self._images.parent), self._place() as place:
            taken = take(asked, place, self._images.parent, self._known, progress, self._ids)
            if taken.fresh:
                if self._ids.kept is not None:
                    (place / "image" / ROOT).rename(place / "image" / root_name(self._ids.kept))
                _write_record(taken, place / "image", asked)
            # At once: what has no name might be pruned.
            with build_lock(self._images / _LOCK):
                if taken.fresh:
                    self._publish(taken.image_id, place)
                found = self._name(taken.image_id, asked.name)
        self._note_use(found.image_id)
        return found

    def _known(self, image_id: str) -> bool:
        with contextlib.suppress(ImageNotFound, TreeDamaged):
            self._read(image_id, {})
            kept = self._ids.kept
            # One from the time before there was a range has lost its owners.
            return kept is None or (self._images / image_id / root_name(kept)).is_dir()
        return False

    @contextlib.contextmanager
    def _place(self) -> Iterator[Path]:
        """A folder of our own in the staging folder, which is gone afterwards."""
        self._make()
        key = secrets.token_hex(8)
        lock_path = self._staging / f"{key}.lock"
        lock = None
        while lock is None:
            lock = try_lock(lock_path)
        place = self._staging / key
        with Descriptor(lock):
            try:
                place.mkdir(mode=0o700)
                yield place
            finally:
                remove_tree(place)
                lock_path.unlink(missing_ok=True)

    def _publish(self, image_id: str, place: Path) -> None:
        target = self._images / image_id
        if target.exists() and not self._known(image_id):
            if self._ids.kept is not None and self._is_whole(image_id):
                name = root_name(self._ids.kept)
                (place / "image" / name).rename(target / name)
                (place / "image" / FILE).rename(target / FILE)
                sync_folder(target)
                return
            target.rename(place / "damaged")
        # Somebody else may have made the same one meanwhile: theirs is as good.
        if not target.exists():
            (place / "image").rename(target)
            sync_folder(self._images)

    def _is_whole(self, image_id: str) -> bool:
        with contextlib.suppress(ImageNotFound, TreeDamaged):
            self._read(image_id, {})
            return True
        return False

    def as_user(self, image_id: str, ids: IdMap) -> Path:
        """The files of an image as a system with these ids has them. For an ordinary user within
        its range; made where they are not there yet, of those with another user. Raises
        `ImageNotFound` where the image has lost its owners, `InsufficientDisk`."""
        folder = self._images / image_id
        wanted = folder / root_name(ids)
        if wanted.is_dir():
            return wanted
        found = sorted(folder.glob(f"{ROOT}-{ids.first}-*"))
        if not found:
            raise ImageNotFound(
                f"The image {image_id} was taken in without its users.",
                hint="Take it in again: carrel image import, build or pull --anew.",
            )
        source = map_of(found[0].name, ids.host)

        def owners(_path: str, status: os.stat_result) -> tuple[int, int]:
            return source.inside(status.st_uid, status.st_gid)

        # One after the other: a stack of services may need the same at once.
        with (
            no_room_as_error(self._images.parent),
            build_lock(folder / _COPYING),
            self._place() as place,
        ):
            if wanted.is_dir():
                return wanted
            asked = ImageImport("copy", found[0])
            nobody = TakenIds(ids, owners)
            take(asked, place, self._images.parent, lambda _id: False, ignore_progress, nobody)
            made = place / "image" / ROOT
            with Descriptor(os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as opened:
                call("syncfs", opened)
            with build_lock(self._images / _LOCK):
                if not wanted.is_dir():
                    made.rename(wanted)
                    sync_folder(folder)
        return wanted

    def folder_for(self, image: RootImage, own: tuple[int, int]) -> Path | None:
        """Root maps the ids when it mounts them."""
        return image.folder if os.geteuid() == 0 else None

    # Finding

    def get(self, name: str) -> RootImage:
        names = self._names()
        return self._read(self._resolve(name, names), names)

    def list(self) -> list[RootImage]:
        names = self._names()
        found = []
        for name in _names_in(self._images):
            if is_image_id(name):
                with contextlib.suppress(ImageNotFound, TreeDamaged):
                    found.append(self._read(name, names))
        return sorted(found, key=lambda image: (-image.created_at, image.image_id))

    def _resolve(self, name: str, names: dict[str, str]) -> str:
        if is_image_id(name):
            return name
        if name not in names:
            raise ImageNotFound(
                f"There is no image {name[:80]!r} here.",
                hint="See them with carrel image ls; import one with carrel image import.",
            )
        return names[name]

    def _read(self, image_id: str, names: dict[str, str]) -> RootImage:
        folder = self._images / image_id
        try:
            record = msgspec.json.decode((folder / FILE).read_bytes(), type=_Record)
            root = _root_in(folder)
            if record.version != _FORMAT or root is None:
                raise ValueError("its files are gone, or of another version")
            used_at = (folder / FILE).stat().st_mtime
        except FileNotFoundError as error:
            if folder.exists():
                raise _damaged(image_id, error) from error
            raise ImageNotFound(
                f"There is no image {image_id} here.", hint="See them with carrel image ls."
            ) from error
        except (ValueError, OSError) as error:
            raise _damaged(image_id, error) from error
        return RootImage(
            image_id=image_id,
            folder=root,
            config=record.config,
            entries=record.entries,
            size_bytes=record.size_bytes,
            created_at=record.created_at,
            source=record.source,
            made=record.made,
            notes=record.notes,
            names=tuple(sorted(name for name, one in names.items() if one == image_id)),
            holders=self._holders_of(image_id),
            used_at=used_at,
        )

    # Names

    def _names(self) -> dict[str, str]:
        try:
            return msgspec.json.decode((self._images / _NAMES).read_bytes(), type=dict[str, str])
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise TreeDamaged(
                f"The names of the images cannot be read: {error}.",
                hint=f"Remove {str(self._images / _NAMES)!r}; images have their ids still.",
            ) from error

    def _write_names(self, names: dict[str, str]) -> None:
        fresh = self._images / f"{_NAMES}.new"
        with open(fresh, "w") as file:
            json.dump(names, file, indent=1, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._images / _NAMES)
        sync_folder(self._images)

    def tag(self, image: str, name: str) -> RootImage:
        check_image_name(name)
        self._make()
        with build_lock(self._images / _LOCK):
            found = self._name(image, name)
        self._note_use(found.image_id)
        return found

    def _name(self, image: str, name: str) -> RootImage:
        names = self._names()
        found = self._read(self._resolve(image, names), names)
        if names.get(name) == found.image_id:
            return found
        names[name] = found.image_id
        self._write_names(names)
        return self._read(found.image_id, names)

    # Holding

    def hold(self, image: str, holder: str) -> RootImage:
        if not _HOLDER.fullmatch(holder):
            raise ImageInvalid(f"{holder[:80]!r} cannot hold an image.")
        self._make()
        with build_lock(self._images / _LOCK):
            found = self.get(image)
            (self._holders / found.image_id).mkdir(mode=0o700, exist_ok=True)
            (self._holders / found.image_id / holder).touch(mode=0o600)
            sync_folder(self._holders / found.image_id)
            sync_folder(self._holders)
        self._note_use(found.image_id)
        return found

    def release(self, holder: str, image: str = "") -> None:
        if not self._holders.exists():
            return
        with build_lock(self._images / _LOCK):
            ids = [image] if is_image_id(image) else [self._names().get(image, "")]
            for folder in list(self._holders.iterdir()):
                if (not image or folder.name in ids) and _HOLDER.fullmatch(holder):
                    (folder / holder).unlink(missing_ok=True)
                    with contextlib.suppress(OSError):
                        folder.rmdir()

    def keep_holders(self, known: Callable[[], Iterable[str]]) -> None:
        if not self._holders.exists():
            return
        with build_lock(self._images / _LOCK):
            living = set(known())
            for folder in list(self._holders.iterdir()):
                for holder in os.listdir(folder):
                    if holder not in living:
                        (folder / holder).unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    folder.rmdir()

    def _holders_of(self, image_id: str) -> tuple[str, ...]:
        return tuple(sorted(_names_in(self._holders / image_id)))

    def _note_use(self, image_id: str) -> None:
        with contextlib.suppress(OSError):
            path = self._images / image_id / FILE
            if time.time() - path.stat().st_mtime > _EXACT_S:
                os.utime(path)

    # Removing

    def remove(self, name: str) -> RootImage:
        with self._place() as place:
            with build_lock(self._images / _LOCK):
                names = self._names()
                image_id = self._resolve(name, names)
                try:
                    found = self._read(image_id, names)
                except TreeDamaged:
                    found = self._rest_of(image_id, names)
                if name != image_id and len(found.names) > 1:
                    del names[name]
                    self._write_names(names)
                    return found
                self._set_aside(found, names, place)
            return found

    def _rest_of(self, image_id: str, names: dict[str, str]) -> RootImage:
        """One that is damaged can be removed."""
        own = tuple(sorted(name for name, one in names.items() if one == image_id))
        holders = self._holders_of(image_id)
        folder = self._images / image_id / ROOT
        return RootImage(image_id, folder, ImageConfig(), 0, 0, 0.0, "", names=own, holders=holders)

    def _set_aside(self, image: RootImage, names: dict[str, str], place: Path) -> None:
        """Takes it out of sight; what is left goes with the place."""
        if image.holders:
            raise ImageInUse(
                f"The image {(*image.names, image.image_id)[0]} is used by "
                f"{_counted(image.holders)}.",
                hint="Remove those first.",
                image_id=image.image_id,
                spaces=list(image.holders),
            )
        kept = {name: one for name, one in names.items() if one != image.image_id}
        if kept != names:
            self._write_names(kept)
            names.clear()
            names.update(kept)
        (self._images / image.image_id).rename(place / image.image_id)

    def prune(self, budget: int | None, *, pretend: bool = False) -> tuple[RootImage, ...]:
        with self._place() as place, build_lock(self._images / _LOCK):
            names = self._names()
            going = _to_go(self.list(), budget)
            if not pretend:
                for image in going:
                    self._set_aside(image, names, place)
            return tuple(going)


def root_name(ids: IdMap) -> str:
    """Of the folder with files that are kept so."""
    return f"{ROOT}-{ids.first}-{ids.own[0]}-{ids.own[1]}"


def map_of(name: str, host: tuple[int, int]) -> IdMap:
    """By which the files in a folder of that name are kept. `host`: the user whose they are."""
    first, uid, gid = map(int, name.removeprefix(f"{ROOT}-").split("-"))
    return IdMap((uid, gid), host, first)


def is_ranged(folder: Path) -> bool:
    """Whether it is one of these."""
    return folder.name.startswith(f"{ROOT}-")


def _root_in(folder: Path) -> Path | None:
    """With the owners of the image, if it has them."""
    found = sorted(folder.glob(f"{ROOT}-*"))
    if found:
        return found[0]
    return folder / ROOT if (folder / ROOT).is_dir() else None


def _write_record(taken: TakenImage, made: Path, asked: ImageImport) -> None:
    record = _Record(
        config=taken.config,
        entries=taken.entries,
        size_bytes=taken.size_bytes,
        created_at=time.time(),
        source=asked.shown or str(asked.source),
        made=taken.made,
        notes=taken.notes,
    )
    with open(made / FILE, "wb") as file:
        file.write(_encoded(record))
        file.flush()
        # Of all files at once: one by one takes minutes.
        call("syncfs", file.fileno())


def _to_go(images: Iterable[RootImage], budget: int | None) -> tuple[RootImage, ...]:
    images = list(images)
    free = sorted((one for one in images if not one.holders), key=lambda one: one.used_at)
    if budget is None:
        return tuple(one for one in free if not one.names)
    going = []
    left = sum(image.size_bytes for image in images)
    # Those without a name first.
    for image in sorted(free, key=lambda one: bool(one.names)):
        if left > budget:
            going.append(image)
            left -= image.size_bytes
    return tuple(going)


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _encoded(record: _Record) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record), indent=1)


def _counted(holders: tuple[str, ...]) -> str:
    more = len(holders) - 3
    return ", ".join(holders[:3]) + (f" and {more} more" if more > 0 else "")


def _damaged(image_id: str, error: Exception) -> TreeDamaged:
    return TreeDamaged(
        f"The image {image_id} is damaged: {error}.",
        hint="Remove it with carrel image rm, and import it again.",
    )
