"""Images, as the contract has them."""

from __future__ import annotations

from pathlib import Path

from carrel.api.types import images as types
from carrel.api.types.common import moment, shared
from carrel.domain.access import Caller
from carrel.domain.engines import BuildNetwork, BuildOptions
from carrel.domain.images import ImageImport, RootImage
from carrel.domain.plans import PlanRequest
from carrel.domain.projects import OnProgress, ignore_progress
from carrel.domain.tar import Readable
from carrel.service.access import is_owner
from carrel.service.images import ImageForProject, ImageLibrary, check_source


class ImageOperations:
    def __init__(self, library: ImageLibrary) -> None:
        self._library = library

    async def take(
        self, caller: Caller, new: types.NewImage, on_progress: OnProgress = ignore_progress
    ) -> types.ImageInfo:
        source = Path(check_source(new.path))
        asked = ImageImport(new.name, source, reference=new.reference)
        return _info(caller, await self._library.take(caller, asked, on_progress))

    async def upload(
        self, caller: Caller, asked: types.ImageUploadQuery, content: Readable
    ) -> types.ImageInfo:
        wanted = ImageImport(asked.name, content, "an upload", reference=asked.reference)
        return _info(caller, await self._library.take(caller, wanted))

    async def build(
        self, caller: Caller, new: types.ImageToBuild, on_progress: OnProgress = ignore_progress
    ) -> types.ImageInfo:
        request = PlanRequest("auto", new.dockerfile, new.devcontainer, new.by_devcontainer)
        options = BuildOptions(new.target, new.args, BuildNetwork(new.network), new.engine)
        asked = ImageForProject(Path(check_source(new.project)), request, new.name, options)
        return _info(caller, await self._library.build(caller, asked, on_progress))

    async def pull(
        self, caller: Caller, new: types.ImageToPull, on_progress: OnProgress = ignore_progress
    ) -> types.ImageInfo:
        options = BuildOptions(engine=new.engine, anew=new.anew, local=new.local)
        made = await self._library.pull(caller, new.image, new.name, options, on_progress)
        return _info(caller, made)

    async def list(self, caller: Caller) -> types.ImageList:
        return _all(caller, await self._library.list())

    async def show(self, caller: Caller, image: str) -> types.ImageInfo:
        return _info(caller, await self._library.get(image))

    async def remove(self, caller: Caller, image: str) -> types.ImageInfo:
        return _info(caller, await self._library.remove(caller, image))

    async def prune(self, caller: Caller, asked: types.PruneBody) -> types.ImageList:
        """Those that are removed, or would be."""
        gone = await self._library.prune(caller, asked.budget_bytes, dry_run=asked.dry_run)
        return _all(caller, gone)


def _all(caller: Caller, images: list[RootImage] | tuple[RootImage, ...]) -> types.ImageList:
    return types.ImageList(images=tuple(_info(caller, one) for one in images))


def _info(caller: Caller, image: RootImage) -> types.ImageInfo:
    """Where it came from, who uses it, and what may be secret in it, is the owner's."""
    config = shared(image.config, types.ImageConfigInfo)
    config["platform"] = str(image.config.platform or "")
    about = shared(image, types.ImageInfo)
    if not is_owner(caller):
        config.update(env=(), labels=())
        about.update(source="", folder="", notes=())
    else:
        about.update(folder=str(image.folder), spaces=image.holders)
    about.update(
        id=image.image_id,
        config=types.ImageConfigInfo(**config),
        created_at=moment(image.created_at),
        used_at=moment(image.used_at),
    )
    return types.ImageInfo(**about)
