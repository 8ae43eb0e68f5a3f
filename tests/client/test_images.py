"""Images from Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from carrel import AsyncClient, Client, errors
from carrel.client import models
from tests.trees.images.layouts import file, layer, oci

CONTENT = oci(layer(file("etc/passwd", b"root")))


def test_all_that_can_be_done(client: Client, tmp_path: Path) -> None:
    steps: list[models.Progress] = []
    (tmp_path / "archive").write_bytes(CONTENT)
    image = client.images.take("a/b:1", tmp_path / "archive", on_progress=steps.append)
    assert all(step.stage for step in steps)
    assert client.images.upload("other", iter([CONTENT])).id == image.id
    assert client.images.get("a/b:1").names == ("a/b:1", "other")
    assert [one.id for one in client.images.list()] == [image.id]
    with pytest.raises(errors.ImageNotFound):
        client.images.get("nothing/there")
    assert client.images.prune() == ()
    assert [one.id for one in client.images.prune(budget_bytes=0, dry_run=True)] == [image.id]
    client.images.remove(image.id)
    assert client.images.list() == []


async def test_the_same_async(async_client: AsyncClient, tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(CONTENT)
    image = await async_client.images.take("x-async", tmp_path / "archive")
    assert (await async_client.images.get(image.id)).names == ("x-async",)
    with pytest.raises(errors.ImageInvalid):
        await async_client.images.upload("y", iter([b"nothing"]))
    await async_client.images.remove("x-async")
