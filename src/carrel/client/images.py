# Made from aio_images.py by tools/unasync.py: change that one.
"""Images, which spaces can have as their system: imported, listed, removed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from carrel.client import models
from carrel.client.events import take_image
from carrel.client.http import LONG_S, operation
from carrel.client.link import Link

if TYPE_CHECKING:
    from collections.abc import Callable


def _teller(
    on_progress: Callable[[models.Progress], None] | None,
) -> Callable[[dict[str, Any]], None] | None:
    if on_progress is None:
        return None
    return lambda step: on_progress(models.decode(step, models.Progress))


class Images:
    """Only administrators may change any."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def take(
        self,
        name: str,
        path: str | os.PathLike[str],
        *,
        reference: str = "",
        on_progress: Callable[[models.Progress], None] | None = None,
    ) -> models.Image:
        """From an archive or folder of the daemon's machine. `reference` is the name of one of
        several images in an archive."""
        content = {"name": name, "path": os.path.abspath(path), "reference": reference}
        made = take_image(self._link, content, _teller(on_progress))
        return models.decode(made, models.Image)

    def build(
        self,
        project: str | os.PathLike[str],
        *,
        name: str = "",
        on_progress: Callable[[models.Progress], None] | None = None,
        **options: Any,
    ) -> models.Image:
        """From the Dockerfile or devcontainer.json of a project on the daemon's machine. The
        options are `dockerfile`, `devcontainer`, `by_devcontainer`, `target`, `args`, `network` and
        `engine`. What is built is told line by line, as the stage of its progress."""
        content = {"project": os.path.abspath(project), "name": name, **options}
        tell = _teller(on_progress)
        made = take_image(self._link, content, tell, by="images.build")
        return models.decode(made, models.Image)

    def pull(
        self,
        image: str,
        *,
        name: str = "",
        on_progress: Callable[[models.Progress], None] | None = None,
        **options: Any,
    ) -> models.Image:
        """From an engine that has it, or from its registry. The options are `engine`, `anew` and
        `local`."""
        content = {"image": image, "name": name, **options}
        made = take_image(self._link, content, _teller(on_progress), by="images.pull")
        return models.decode(made, models.Image)

    def upload(self, name: str, pieces: Iterable[bytes], *, reference: str = "") -> models.Image:
        """From the bytes of an archive."""
        query = [("name", name), ("reference", reference or None)]
        request = operation("images.upload", query=query, body=pieces, timeout_s=LONG_S)
        return models.decode(self._link.json(request), models.Image)

    def list(self) -> list[models.Image]:
        """The newest first."""
        return self._link.call(list[models.Image], "images.list", member="images")

    def get(self, image: str) -> models.Image:
        """By a name or an id."""
        return self._link.call(models.Image, "images.show", image)

    def remove(self, image: str) -> models.Image:
        """By its id or only name it goes; by one of several names, that name does."""
        return self._link.call(models.Image, "images.remove", image)

    def prune(
        self, *, budget_bytes: int | None = None, dry_run: bool = False
    ) -> tuple[models.Image, ...]:
        """Without a budget those without a name, else those not used for longest; never one that a
        space uses."""
        content = {"budget_bytes": budget_bytes, "dry_run": dry_run}
        request = operation("images.prune", content=content)
        found = (self._link.json(request))["images"]
        return models.decode(found, tuple[models.Image, ...])
