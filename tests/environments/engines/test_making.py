"""A project's image from its files to Carrel's images, with a real engine."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.domain.access import LOCAL
from carrel.domain.engines import BuildNetwork, BuildOptions
from carrel.domain.errors import EnvironmentRefused, ImageBuildFailed
from carrel.domain.images import ImageImport
from carrel.domain.plans import PlanKind, PlanRequest
from carrel.domain.projects import Progress
from carrel.environments.engines.catalogue import Engines
from carrel.environments.engines.maker import ProjectImages
from carrel.service.images import ImageForProject, ImageLibrary
from carrel.trees.images.store import ImageStore
from tests.accounts import SOURCE
from tests.busybox import busybox_image
from tests.environments.devcontainers import DEVCONTAINERS, Devcontainer
from tests.environments.engines.rig import FROM, project, rootfs
from tests.sampling import every

OFFLINE = BuildOptions(network=BuildNetwork.NONE)
PLACE = ".devcontainer/devcontainer.json"


@pytest.fixture
def library(data: Path, engine_folder: Path) -> Iterator[ImageLibrary]:
    engines = Engines(engine_folder, keep_free=0)
    if not engines.all[0].probe().available:
        pytest.skip("podman does not work here")
    yield ImageLibrary(ImageStore(data), ProjectImages(engines))


def asked(place: Path, name: str = "", **request: object) -> ImageForProject:
    return ImageForProject(place, PlanRequest(**request), name, OFFLINE)  # type: ignore[arg-type]


async def test_it_is_built_once_for_each_content(library: ImageLibrary, tmp_path: Path) -> None:
    dockerfile = FROM + "ENV A=b\nUSER 7\nCOPY one /one\n"
    place = project(tmp_path / "project", dockerfile, {"one": "1", "other": ""})
    steps: list[Progress] = []
    first = await library.build(LOCAL, asked(place, "mine:1"), steps.append)
    assert "mine:1" in first.names and first.config.user == "7"
    assert dict(first.config.env)["A"] == "b"
    assert any("COPY" in step.stage for step in steps)
    (place / "other").write_text("not copied")
    steps.clear()
    again = await library.build(LOCAL, asked(place), steps.append)
    assert again.image_id == first.image_id and steps == []
    (place / "one").write_text("2")
    assert (await library.build(LOCAL, asked(place))).image_id != first.image_id


async def test_a_devcontainer_is_built(library: ImageLibrary, tmp_path: Path) -> None:
    config = '{"build": {"dockerfile": "Dev", "context": "..", "args": {"WORD": "w"}}}'
    files = {PLACE: config, ".devcontainer/Dev": FROM + "ARG WORD\nENV SAID=$WORD\n"}
    place = project(tmp_path / "project", "FROM nothing\n", files)
    image = await library.build(LOCAL, asked(place, by_devcontainer=True))
    assert dict(image.config.env)["SAID"] == "w"


async def test_what_fails_leaves_no_image(library: ImageLibrary, tmp_path: Path) -> None:
    place = project(tmp_path / "project", FROM + "RUN exit 5\n")
    with pytest.raises(ImageBuildFailed):
        await library.build(LOCAL, asked(place))
    (place / "Dockerfile").unlink()
    with pytest.raises(EnvironmentRefused, match="nothing to build"):
        await library.build(LOCAL, asked(place))
    assert await library.list() == []


async def test_who_goes_away_ends_the_build(
    library: ImageLibrary, engine_folder: Path, tmp_path: Path
) -> None:
    place = project(tmp_path / "project", FROM + "RUN echo asleep && sleep 4321.5\n")
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hear(step: Progress) -> None:
        if step.stage == "asleep":
            loop.call_soon_threadsafe(begun.set)

    building = asyncio.ensure_future(library.build(LOCAL, asked(place), hear))
    waiting = asyncio.ensure_future(begun.wait())
    await asyncio.wait({building, waiting}, return_when=asyncio.FIRST_COMPLETED, timeout=60)
    assert begun.is_set()
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    async with asyncio.timeout(30):
        while any((engine_folder / "work").iterdir()):
            await asyncio.sleep(0.05)
    assert await library.list() == []


async def test_features_are_added_by_the_reference_tool(
    data: Path, engine_folder: Path, tmp_path: Path
) -> None:
    """Beside podman in its sandbox; nothing of the file runs there but what it builds."""
    packages = SOURCE / "tools/devcontainers/node_modules"
    engines = Engines(engine_folder, keep_free=0, packages=packages)
    if not engines.features().available:
        pytest.skip(engines.features().reason)
    passwd = "RUN echo root:x:0:0:root:/:/bin/sh >/etc/passwd && echo root:x:0: >/etc/group\n"
    base = project(tmp_path / "base", FROM + passwd)
    library = ImageLibrary(ImageStore(data), ProjectImages(engines))
    config = {
        "build": {"dockerfile": "Dev"},
        "features": {"./mine": {"word": "given"}},
        "initializeCommand": f"touch {tmp_path}/ran",
    }
    files = {
        PLACE: json.dumps(config),
        ".devcontainer/Dev": FROM + passwd + "ENV PATH=/bin\n",
        ".devcontainer/mine/devcontainer-feature.json": json.dumps(
            {
                "id": "mine",
                "version": "1.0.0",
                "name": "Mine",
                "options": {"word": {"type": "string", "default": "none"}},
                "containerEnv": {"MINE": "here"},
                "privileged": True,
            }
        ),
        ".devcontainer/mine/install.sh": "#!/bin/sh\necho $WORD >/feature\n",
    }
    place = project(base, "", files)
    (place / ".devcontainer/rootfs.tar").write_bytes((place / "rootfs.tar").read_bytes())
    image = await library.build(LOCAL, asked(place, by_devcontainer=True))
    assert dict(image.config.env)["MINE"] == "here"
    assert (image.folder / "feature").read_text() == "given\n"
    assert not (tmp_path / "ran").exists()
    assert (
        await library.build(LOCAL, asked(place, by_devcontainer=True))
    ).image_id == image.image_id


BUILT = [one for one in DEVCONTAINERS if not one.refused and one.kind == "build"]
CASES = [*(one for one in DEVCONTAINERS if one not in BUILT), *every(2, BUILT)]
"""What is refused costs nothing; a build takes a second."""


def _offline(text: str) -> str:
    """A Dockerfile of the corpus, on the only base that is here without a registry."""
    return re.sub(r"^FROM \S+(.*)$", r"FROM scratch\1\nADD rootfs.tar /", text, flags=re.MULTILINE)


@pytest.mark.parametrize("case", CASES, ids=lambda one: one.name)
async def test_each_devcontainer_gives_an_image_or_a_reason(
    library: ImageLibrary, case: Devcontainer, tmp_path: Path
) -> None:
    files = {name: _offline(text) for name, text in case.files.items()}
    place = project(tmp_path / "app", "FROM nothing\n", {PLACE: case.text, **files})
    (place / ".devcontainer/rootfs.tar").write_bytes(rootfs())
    texts = "\n".join((case.text, *case.files.values()))
    for name in re.findall(r"""\bimage"?: ["']([^"'$]+)["']""", texts):
        library.images.take(ImageImport(name, busybox_image(tmp_path)), lambda _step: None)
    before = len(await library.list())
    asked = PlanRequest(by_devcontainer=True)
    making = library.of_project(place, "app", asked, lambda _step: None)
    if case.refused:
        with pytest.raises(EnvironmentRefused, match=case.refused):
            await making
        return
    plan, image = await making
    assert image is not None and (image.folder / "bin/busybox").exists()
    built = len(await library.list()) - before
    assert (plan.kind is PlanKind.BUILD, built) == (case.kind == "build", case.kind == "build")
    assert [one.why for one in plan.dropped if not one.why] == []
