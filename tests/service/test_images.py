"""Images in the service: what goes by itself, and an import whose caller goes."""

from __future__ import annotations

import asyncio
import io
import os
import threading

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.errors import ImageInUse
from carrel.domain.images import ImageImport
from carrel.domain.projects import Progress
from carrel.environments.engines.catalogue import Engines
from carrel.environments.engines.maker import ProjectImages
from carrel.service.images import ImageLibrary
from tests.trees.images.layouts import file, layer, oci, take

WAIT_S = 30.0


def library(services: Services) -> ImageLibrary:
    engines = Engines(services.settings.data / "engines")
    return ImageLibrary(services.app.images, ProjectImages(engines))


async def test_images_go_when_they_take_too_much(services: Services) -> None:
    store, collector = services.app.images, services.collector
    held, old, new = [
        await asyncio.to_thread(take, store, oci(layer(file(name, bytes(1000)))), name)
        for name in ("held", "old", "new")
    ]
    os.utime(old.folder.parent / "image.json", (1, 1))
    store.hold("held", "sp_a")
    assert await collector.tidy() == []
    collector.image_budget_bytes = 2500
    report = await collector.run(LOCAL, dry_run=True)
    assert [(one.verb, one.target) for one in report.actions] == [("remove image", "old")]
    assert [one.target for one in await collector.tidy()] == ["old"]
    assert {one.image_id for one in store.list()} == {held.image_id, new.image_id}
    collector.image_budget_bytes = 1
    assert [one.target for one in await collector.tidy()] == ["new"]
    with pytest.raises(ImageInUse):
        await library(services).remove(LOCAL, "held")


async def test_an_import_is_given_up_with_its_caller(services: Services) -> None:
    store, begun, go_on = services.app.images, threading.Event(), threading.Event()
    told = threading.Event()

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            begun.set()
            go_on.wait(WAIT_S)
            return super().read(size)

    def tell(_step: Progress) -> None:
        told.set()

    asked = ImageImport("x", Slow(oci(layer(*(file(f"f{n}") for n in range(100))))))
    taking = asyncio.create_task(library(services).take(LOCAL, asked, tell))
    assert await asyncio.to_thread(begun.wait, WAIT_S)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    go_on.set()
    async with asyncio.timeout(WAIT_S):
        while list((services.settings.data / "images/.staging").iterdir()):
            await asyncio.sleep(0)
    assert store.list() == []
    assert not told.is_set()
