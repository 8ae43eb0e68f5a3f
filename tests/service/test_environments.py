"""New spaces with what their project's files describe: the image, variables, ports and commands."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.engines import BuildNetwork, BuildOptions, EngineWatch
from carrel.domain.errors import (
    CarrelError,
    EnvironmentRefused,
    Forbidden,
    ImageBuildFailed,
    ImageInvalid,
    ImageNotFound,
    NameTaken,
    SetupFailed,
)
from carrel.domain.images import ImageImport
from carrel.domain.plans import EnvironmentPlan
from carrel.domain.projects import Progress
from carrel.domain.runs import RunState
from carrel.domain.spaces import Space
from carrel.environments.engines.catalogue import Engines
from carrel.environments.engines.maker import ProjectImages
from carrel.service.checkpoints import ForkRequest
from carrel.service.family import Child
from carrel.service.images import ImageLibrary
from tests.accounts import Account
from tests.busybox import busybox_image
from tests.environments.engines.rig import FROM
from tests.environments.engines.rig import project as with_dockerfile
from tests.service.rig import family_of, leftovers, make, opened, request, run
from tests.trees.again import run_again

PLACE = ".devcontainer/devcontainer.json"
WAIT_S = 60.0


class NoEngines(Engines):
    """Of a machine without any."""

    @property
    def all(self) -> tuple[()]:
        return ()

    def holder(self, name: str) -> None:
        return None


class OfflineImages(ProjectImages):
    """An ordinary user's engine may have no network to give to the steps of a build."""

    def make(
        self,
        project: Path,
        plan: EnvironmentPlan,
        options: BuildOptions,
        kept: Callable[[str], bool],
        watch: EngineWatch,
    ) -> Any:
        options = dataclasses.replace(options, network=BuildNetwork.NONE)
        return super().make(project, plan, options, kept, watch)


def with_engines(services: Services, engines: Engines) -> Services:
    environments = services.spaces.environments
    assert environments is not None
    library = ImageLibrary(services.app.images, OfflineImages(engines))
    services.spaces.environments = dataclasses.replace(environments, library=library)
    return services


@pytest.fixture
async def plain(services: Services, tmp_path: Path) -> AsyncIterator[Services]:
    """Without an engine; an image named box:1 is kept."""
    with_engines(services, NoEngines(tmp_path / "none"))
    box = busybox_image(tmp_path, user="worker")
    take = services.app.images.take
    await asyncio.to_thread(take, ImageImport("box:1", box), lambda _step: None)
    yield services


def devcontainer(folder: Path, **content: object) -> Path:
    path = folder / PLACE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"image": "box:1", **content}))
    return folder


async def said(services: Services, space: Space, script: str) -> str:
    return (await run(services, space, script))[1]


async def test_a_devcontainer_of_an_image_that_is_there(plain: Services, project: Path) -> None:
    devcontainer(
        project,
        remoteUser="worker",
        containerEnv={"ONE": "1", "PATH": "/more:${containerEnv:PATH:/bin}", "BAD": "${unknown:x}"},
        remoteEnv={"TWO": "${containerEnv:NONE:two}", "SECRET": "${localEnv:HOME}"},
        forwardPorts=[3000, "db:5432"],
        portsAttributes={"3000": {"label": "web"}},
        initializeCommand="touch /tmp/on-the-host",
        privileged=True,
        workspaceFolder="/workspaces/shop",
        onCreateCommand="cd ${containerWorkspaceFolder} && echo create >> log",
        updateContentCommand=["sh", "-c", "echo update >> log"],
        postCreateCommand={"a": "echo a > made-a", "b": ["touch", "made-b"]},
        postStartCommand="echo start $ONE >> log; id -un >> log",
    )
    space = await make(plain, project, image="auto")
    assert space.image is not None and not space.transient and not space.setting_up
    assert space.image.name == PLACE and space.image.user == "worker"
    text = await said(plain, space, "cat log; ls made-*; echo $TWO $PATH; id -un")
    assert text.splitlines() == [
        *("create", "update", "start 1", "worker", "made-a", "made-b"),
        *(next(line for line in text.splitlines() if line.startswith("two /more:")), "worker"),
    ]
    assert [port.number for port in space.image.ports] == [3000]
    notes = " ".join(space.image_notes)
    assert "initializeCommand" in notes and "privileged" in notes and "BAD" in notes
    assert "box:1" in notes and space.image.image_id in notes
    written = (plain.settings.data / "spaces" / space.space_id / "containers/plan.yaml").read_text()
    assert "privileged" in written and "postStartCommand: echo start" in written
    # At each further start the last of them runs again.
    await plain.spaces.restart(LOCAL, space.space_id)
    assert (await said(plain, space, "cat log")).splitlines()[-2:] == ["start 1", "worker"]
    assert (await said(plain, space, "wc -l < log")).strip() == "6"
    # Only what runs in the image has the variables, and the commands are runs of the space.
    assert "ONE" not in space.env
    records = await plain.store.runs(space.space_id, limit=20)
    assert len([one for one in records if one.state is RunState.ENDED]) >= 5
    shown = await plain.operations.spaces.show(LOCAL, space.space_id)
    assert shown.image is not None and shown.image.ports[0].label == "web"
    assert shown.image.notes[: len(space.image_notes)] == space.image_notes


async def test_commands_that_fail_leave_nothing(plain: Services, project: Path) -> None:
    devcontainer(project, onCreateCommand="echo it is broken; exit 3", postCreateCommand="echo no")
    with pytest.raises(SetupFailed, match=r"(?s)it is broken") as failed:
        await make(plain, project, image="auto", name="desk")
    assert "exit 3" in failed.value.message and "with 3" in failed.value.message
    assert leftovers(plain.settings.data) == []
    space = await make(plain, project, image="auto", name="desk", run_setup=False)
    assert space.image is not None and (await run(plain, space, "test ! -e log"))[0].exit


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's trees are not seen from outside")
async def test_nobody_works_in_it_before_its_commands_have_run(
    plain: Services, project: Path
) -> None:
    devcontainer(project, postCreateCommand="mkfifo gate; echo begun > begun; cat gate > went")
    making = asyncio.create_task(make(plain, project, image="auto", name="desk"))
    folder: Path | None = None
    async with asyncio.timeout(WAIT_S):
        while folder is None or not (folder / "project/begun").exists():
            found = [one for one in plain.journal.all() if one.name == "desk"]
            folder = plain.open_spaces.folder(found[0].space_id) if found else None
            await asyncio.sleep(0)
            assert not making.done(), making.exception()
        with pytest.raises(CarrelError, match="nobody else"):
            await plain.spaces.existing(LOCAL, "desk")
        with (folder / "project/gate").open("wb", buffering=0) as gate:
            gate.write(b"x")
        space = await making
    assert (await plain.spaces.existing(LOCAL, "desk")).space_id == space.space_id


async def test_auto_says_why_there_is_no_image(plain: Services, project: Path) -> None:
    (project / "Dockerfile").write_text("FROM scratch\n")
    space = await make(plain, project, image="auto")
    assert space.image is None
    assert "host's toolchain" in space.image_notes[0] and "Dockerfile" in space.image_notes[0]
    shown = await plain.operations.spaces.show(LOCAL, space.space_id)
    assert shown.image is not None and not shown.image.id and shown.image.notes
    with pytest.raises(EnvironmentRefused):
        await make(plain, project, dockerfile="Dockerfile")
    with pytest.raises(EnvironmentRefused, match="at once"):
        await make(plain, project, image="box:1", dockerfile="Dockerfile")
    space = await make(plain, project, image="none")
    assert space.image is None and space.image_notes == ()
    assert (await make(plain, image="auto")).image is None
    with pytest.raises(ImageNotFound, match="no-such") as missing:
        await make(plain, image="no-such")
    assert "image pull" in missing.value.hint


async def test_children_and_forks_have_the_same_image(plain: Services, project: Path) -> None:
    devcontainer(project, remoteUser="worker", containerEnv={"A": "a"}, onCreateCommand="echo x>>n")
    space = await make(plain, project, image="auto")
    child = await family_of(plain).spawn(space.space_id, Child())
    forks = await plain.checkpoints.fork(LOCAL, space.space_id, ForkRequest())
    fork = forks.spaces[0]
    await plain.spaces.remove(LOCAL, space.space_id, force=True)
    again = await plain.spaces.undelete(LOCAL, space.space_id)
    for one, times in ((child, "0"), (fork, "1"), (again, "1")):
        assert one.image is not None and space.image is not None
        assert one.image.image_id == space.image.image_id
        text = await said(plain, one, "id -un; echo $A; cat n 2>/dev/null | wc -l")
        assert text.split() == ["worker", "a", times]


@pytest.mark.parametrize(
    "asked",
    [{"image": "auto"}, {"image": "/x"}, {"dockerfile": "x"}, {"by_devcontainer": True}],
)
async def test_guests_have_nothing_built(plain: Services, asked: dict[str, object]) -> None:
    guest = Caller("guest", Scope(ScopeKind.LABEL, "team=a"))
    with pytest.raises(Forbidden, match="image"):
        await plain.spaces.create(guest, request(**asked))  # type: ignore[arg-type]
    space = await plain.spaces.create(guest, request(image="box:1"))
    assert space.image is not None and space.image.name == "box:1"


async def test_auto_is_the_default(plain: Services, project: Path) -> None:
    space = await make(plain, project)
    assert space.image is None and space.image_notes == ()
    (project / "go.mod").write_text("module shop\n")
    space = await make(plain, project)
    assert space.image is None and "host's toolchain" in " ".join(space.image_notes)
    devcontainer(project)
    space = await make(plain, project)
    assert space.image is not None and PLACE in " ".join(space.image_notes)
    space = await make(plain, project, image="none")
    assert space.image is None and space.image_notes == ()
    # Of what is no folder nothing is looked at.
    for other in (await make(plain), await make(plain, base_id=space.base_id)):
        assert other.image is None and other.image_notes == ()


@pytest.mark.parametrize("by_default", ["auto", "none"])
async def test_who_has_nothing_by_default(data: Path, project: Path, by_default: str) -> None:
    (project / "Dockerfile").write_text(FROM)
    guest = Caller("guest", Scope(ScopeKind.LABEL, "team=a"))
    roots = [str(project)]
    async with opened(data, sandbox={"image": by_default}, project_roots=roots) as services:
        space = await services.spaces.create(guest, request(project))
        assert space.image is None and space.image_notes == ()
        if by_default == "none":
            space = await make(services, project)
            assert space.image is None and space.image_notes == ()


async def test_nobody_is_kept_out_by_commands_that_nobody_asked_for(
    plain: Services, project: Path
) -> None:
    devcontainer(
        project,
        onCreateCommand="echo here > here; echo it is broken; exit 3",
        postCreateCommand="touch never",
    )
    space = await make(plain, project, name="desk")
    assert not space.transient and not space.setting_up and space.image is not None
    notes = "\n".join(space.image_notes)
    assert "not set up" in notes and "exit 3" in notes and "  it is broken" in notes
    assert await said(plain, space, "ls here never 2>&- || true") == "here\n"


async def test_nobody_is_kept_out_by_a_user_that_the_image_has_not(
    plain: Services, project: Path
) -> None:
    devcontainer(project, remoteUser="nobody-of-these")
    with pytest.raises(ImageInvalid, match="nobody-of-these"):
        await make(plain, project, image="auto")
    space = await make(plain, project)
    assert space.image is None and "nobody-of-these" in space.image_notes[0]


@pytest.fixture
async def podman(services: Services, tmp_path: Path) -> AsyncIterator[Services]:
    engines = Engines(services.settings.data / "engines", keep_free=0)
    if not engines.all[0].probe().available:
        pytest.skip("podman does not work here")
    yield with_engines(services, engines)


async def test_a_dockerfile_is_built_once(podman: Services, tmp_path: Path) -> None:
    place = with_dockerfile(
        tmp_path / "built", FROM + "ENV SAID=word\nCOPY one /one\n", {"one": "1"}
    )
    steps: list[Progress] = []
    first = await podman.spaces.create(LOCAL, request(place, image="auto"), steps.append)
    assert any("COPY" in step.stage for step in steps)
    assert await said(podman, first, "cat /one; echo $SAID") == "1word\n"
    written = podman.settings.data / "spaces" / first.space_id / "containers"
    assert (written / "Dockerfile").read_text() == (place / "Dockerfile").read_text()
    assert first.image is not None
    assert f"image_id: {json.dumps(first.image.image_id)}" in (written / "plan.yaml").read_text()
    with_engines(podman, NoEngines(tmp_path / "none"))
    # It is known by its content, for which no engine is needed.
    second = await make(podman, place, image="auto")
    third = await make(podman, place, dockerfile="Dockerfile")
    assert second.image is not None and third.image is not None
    assert first.image.image_id == second.image.image_id == third.image.image_id


async def test_a_build_that_fails_leaves_nothing(podman: Services, tmp_path: Path) -> None:
    place = with_dockerfile(tmp_path / "broken", FROM + "COPY nothing /x\n")
    taken = await make(podman, name="taken")
    with pytest.raises(NameTaken):
        await make(podman, place, image="auto", name="taken")
    await podman.spaces.remove(LOCAL, taken.space_id)
    with pytest.raises(ImageBuildFailed) as failed:
        await make(podman, place, image="auto")
    assert "nothing" in failed.value.message
    assert podman.app.images.list() == [] and leftovers(podman.settings.data) == []
    assert not list(podman.journal.all())


async def test_nobody_is_kept_out_by_a_build_that_fails(podman: Services, tmp_path: Path) -> None:
    place = with_dockerfile(tmp_path / "broken", FROM + "RUN echo by-a-step && exit 7\n")
    steps: list[Progress] = []
    space = await podman.spaces.create(LOCAL, request(place), steps.append)
    assert any(step.building == "Dockerfile" and "by-a-step" in step.stage for step in steps)
    assert space.image is None and await said(podman, space, "echo works") == "works\n"
    notes = "\n".join(space.image_notes)
    assert "host's toolchain is used: the image could not be built" in notes
    assert "by-a-step" in notes and "carrel image build" in notes
    # The next does not wait for the same again.
    steps.clear()
    again = await podman.spaces.create(LOCAL, request(place), steps.append)
    assert again.image_notes == space.image_notes
    assert not any(step.building for step in steps)
    with pytest.raises(ImageBuildFailed):
        await make(podman, place, image="auto")
    # Where nobody sees a build, there is none.
    (place / "Dockerfile").write_text(FROM + "RUN echo unseen\n")
    steps.clear()
    unseen = dataclasses.replace(request(place), unwatched=True)
    space = await podman.spaces.create(LOCAL, unseen, steps.append)
    assert space.image is None and "carrel image build" in space.image_notes[0]
    assert not any(step.building for step in steps)
    # Other content is another build.
    (place / "Dockerfile").write_text(FROM + "RUN echo mended\n")
    assert (await make(podman, place)).image is not None
    assert (await podman.spaces.create(LOCAL, unseen)).image is not None


async def test_an_engine_that_hangs_does_so_once(
    podman: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = with_dockerfile(tmp_path / "project", FROM)
    with monkeypatch.context() as patched:
        patched.setattr("carrel.environments.engines.own.PROBE_S", 0.0)
        patched.setattr("carrel.service.images.SLOW_S", 0.0)
        space = await make(podman, place)
    assert space.image is None and "hangs" in space.image_notes[0]
    # Nobody asks it again for a while, who did not ask for an image.
    again = await make(podman, place)
    assert again.image is None and again.image_notes[0] == space.image_notes[0]
    assert (await make(podman, place, image="auto")).image is not None
    assert (await make(podman, place)).image is not None


async def test_a_build_ends_with_its_request(podman: Services, tmp_path: Path) -> None:
    place = with_dockerfile(tmp_path / "slow", FROM + "RUN echo asleep && sleep 4322.5\n")
    begun, loop = asyncio.Event(), asyncio.get_running_loop()

    def hear(step: Progress) -> None:
        if step.stage == "asleep":
            loop.call_soon_threadsafe(begun.set)

    making = asyncio.create_task(
        podman.spaces.create(LOCAL, request(place, image="auto"), hear, key="k")
    )
    waiting = asyncio.create_task(begun.wait())
    await asyncio.wait({making, waiting}, return_when=asyncio.FIRST_COMPLETED, timeout=WAIT_S)
    assert begun.is_set()
    # Meanwhile others have what is there, at once.
    box = busybox_image(tmp_path)
    take = podman.app.images.take
    await asyncio.to_thread(take, ImageImport("box:1", box), lambda _step: None)
    assert (await make(podman, image="box:1")).image is not None
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    async with asyncio.timeout(WAIT_S):
        while any((podman.settings.data / "engines/work").iterdir()):
            await asyncio.sleep(0.05)
    assert [image.names for image in podman.app.images.list()] == [("box:1",)]
    assert await podman.spaces.made_with(LOCAL, "k") is None


async def test_the_same_content_is_built_once(podman: Services, tmp_path: Path) -> None:
    place = with_dockerfile(tmp_path / "shared", FROM + "RUN echo by-a-step\n")
    steps: list[list[Progress]] = [[], []]
    spaces = await asyncio.gather(
        *(
            podman.spaces.create(LOCAL, request(place, image="auto"), heard.append)
            for heard in steps
        )
    )
    assert len({one.image.image_id for one in spaces if one.image}) == 1
    assert len([one for one in steps if any("by-a-step" in step.stage for step in one)]) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run")
def test_the_same_as_an_ordinary_user(ordinary_user: Account, data: Path) -> None:
    """With a user of the image who is not its root, and no /usr in it."""
    run_again(__file__, ordinary_user, data, "-k", "devcontainer_of")
