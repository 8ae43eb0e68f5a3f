"""Layers of an image, one over the other, into a root file system."""

from __future__ import annotations

import tarfile

from carrel.domain.tar import Member, TarReader
from carrel.trees.folders import join, split
from carrel.trees.images.archives import (
    Hashed,
    OnBytes,
    PlainStream,
    TarFile,
    archive_errors,
    broken,
)
from carrel.trees.images.manifests import LayerPlan
from carrel.trees.images.root import (
    ATTRIBUTES,
    CAPABILITIES,
    DEVICES,
    EntryFacts,
    RootBuilder,
    image_name,
    refused,
)

_WHITEOUT, _OPAQUE, _OF_AUFS = ".wh.", ".wh..wh..opq", ".wh..wh."
_CAPABILITY = b"security.capability"
_DEVICES = (tarfile.CHRTYPE, tarfile.BLKTYPE)


def add_layer(builder: RootBuilder, plan: LayerPlan, where: str) -> None:
    """Raises `ImageInvalid`, also when it is not what the image says."""
    builder.next_layer()
    with archive_errors(where):
        packed = Hashed(plan.part, plan.digest.partition(":")[0] or "sha256")
        plain = PlainStream(packed)
        algorithm = plan.diff_id.partition(":")[0]
        # The same bytes need not be named twice.
        same = not plain.compressed and algorithm == packed.algorithm
        content = plain if same else Hashed(plain, algorithm)
        _add(builder, TarReader(content))
        packed.drain()
    found = packed.digest if same else content.digest if isinstance(content, Hashed) else ""
    if (plan.digest and packed.digest != plan.digest) or found != plan.diff_id:
        raise broken(f"{where} is not what the image says it is")


def add_tar(builder: RootBuilder, archive: TarFile, on_bytes: OnBytes) -> str:
    """A root file system that was packed by itself. The digest of it."""
    with archive_errors("its files"):
        content = Hashed(archive.whole(on_bytes))
        _add(builder, TarReader(content))
        content.drain()
    return content.digest


def _add(builder: RootBuilder, reader: TarReader) -> None:
    for member in reader:
        path = image_name(member.name)
        above, name = split(path)
        if name.startswith(_WHITEOUT):
            _delete(builder, member, above, name)
            continue
        if f"/{_WHITEOUT}" in f"/{above}":
            raise refused(member.name, "is in something that is deleted")
        _entry(builder, reader, member, path)


def _delete(builder: RootBuilder, member: Member, above: str, name: str) -> None:
    if name == _OPAQUE:
        builder.hide(above)
    elif not name.startswith(_OF_AUFS):
        gone = name.removeprefix(_WHITEOUT)
        if gone in ("", ".", ".."):
            raise refused(member.name, "deletes nothing that could have a name")
        builder.delete(join(above, gone))


def _entry(builder: RootBuilder, reader: TarReader, member: Member, path: str) -> None:
    for attribute in member.attributes:
        builder.notes.add(CAPABILITIES if attribute == _CAPABILITY else ATTRIBUTES, path)
    facts = EntryFacts(member.mode & 0o7777, member.owner, member.mtime_ns)
    if member.is_file:
        small = reader.small(member)
        pieces = reader.content(member) if small is None else ((0, small),)
        builder.write(path, facts, member.size, pieces)
    elif member.kind == tarfile.DIRTYPE:
        builder.make_folder(path, facts)
    elif member.kind == tarfile.SYMTYPE:
        builder.symlink(path, member.target, facts)
    elif member.kind == tarfile.LNKTYPE:
        builder.link(path, image_name(member.target))
    elif member.kind == tarfile.FIFOTYPE:
        builder.fifo(path, facts)
    elif member.kind in _DEVICES:
        builder.skip(path, DEVICES)
    else:
        raise refused(member.name, "is of a kind that is not known")
