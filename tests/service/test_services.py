"""Services of a project's compose file, in spaces that are made for real."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import tarfile
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
import yaml

from carrel.agents.credentials import Credentials
from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.checkpoints import START
from carrel.domain.errors import CommandInvalid, EnvironmentRefused, ServiceFailed, SpaceInvalid
from carrel.domain.events import EventQuery
from carrel.domain.images import ImageImport
from carrel.domain.limits import LimitKind, Limits
from carrel.domain.projects import ignore_progress
from carrel.domain.runtimes import Command, Network
from carrel.domain.services import HealthCheck, ServicePhase
from carrel.domain.spaces import Space
from carrel.domain.systems import CommandPlace
from carrel.runtimes.limits.cgroups import Cgroups
from carrel.service.checkpoints import ForkRequest
from carrel.service.open_spaces import LOCAL_HOSTS
from tests.accounts import Account
from tests.busybox import busybox_image
from tests.sampling import beyond
from tests.service.rig import leftovers, opened, output, request, run
from tests.service_images import postgres_image, redis_image
from tests.trees.again import run_again
from tests.trees.images.layouts import config_of, saved

SERVER = "while true; do echo {word} | nc -l -p {port}; done"
CHECK = {
    "test": 'test -n "$$(nc 127.0.0.1 8080 </dev/null)"',
    "interval": "1s",
    "retries": 120,
}


@contextlib.asynccontextmanager
async def with_box(data: Path, **settings: object) -> AsyncIterator[Services]:
    async with opened(data, **settings) as services:
        box = busybox_image(data.parent)
        services.app.images.take(ImageImport("box:1", box), lambda _step: None)
        yield services


def server(word: str, port: int = 8080, **more: object) -> dict[str, object]:
    return {"image": "box:1", "command": ["sh", "-c", SERVER.format(word=word, port=port)], **more}


def compose(folder: Path, services: Mapping[str, object], **top: object) -> Path:
    project = folder / "shop"
    project.mkdir(exist_ok=True)
    (project / "compose.yaml").write_text(yaml.safe_dump({"services": dict(services), **top}))
    return project


def states(services: Services, space: Space) -> dict[str, ServicePhase]:
    return {one.name: one.state for one in services.space_services.of(space)}


async def new(app: Services, project: Path | None, **options: object) -> Space:
    asked = request(project, **{"services": "auto", **options})
    return await app.spaces.create(LOCAL, asked)


def _left(data: Path) -> list[str]:
    """But for what the trash keeps of their data."""
    return [one for one in leftovers(data) if not one.startswith("trash ")]


async def in_service(services: Services, space: Space, name: str, script: str) -> str:
    record = await services.runs.start(
        space.space_id, Command(("sh", "-c", script), timeout_s=30), service=name
    )
    return await output(services, await services.runs.wait(record.run_id))


async def test_a_service_runs_beside_the_commands_of_its_space(data: Path, tmp_path: Path) -> None:
    project = compose(tmp_path, {"greeter": server("hello")})
    async with with_box(data) as services:
        space = await new(services, project, image="box:1")
        assert states(services, space) == {"greeter": ServicePhase.RUNNING}
        assert space.state == "ready"
        record, said = await run(services, space, "nc greeter 8080 </dev/null")
        assert record.exit is not None
        assert (record.exit.code, said) == (0, "hello\n")
        assert "bin" in await in_service(services, space, "greeter", "ls /")
        await services.spaces.remove(LOCAL, space.space_id, force=True)
        assert _left(data) == []


POSTGRES = {
    "image": "postgres:1",
    "user": "postgres",
    "environment": {"PGDATA": "/var/lib/postgresql/data/pg"},
    "command": [
        *("sh", "-c"),
        "test -e $$PGDATA || initdb -N -U postgres --locale=C --auth=trust >/dev/null; "
        "exec postgres -c listen_addresses=127.0.0.1 -c unix_socket_directories=/tmp -c fsync=off",
    ],
    "volumes": ["pgdata:/var/lib/postgresql/data"],
    "healthcheck": {
        "test": ["CMD", "pg_isready", "-h", "127.0.0.1"],
        "interval": "1s",
        "retries": 60,
    },
    "stop_signal": "SIGINT",
    "ports": ["5432:5432"],
}
REDIS = {
    "image": "redis:1",
    "command": "redis-server --dir /data --appendonly no --save 60 1",
    "volumes": ["redisdata:/data"],
    "healthcheck": {"test": "redis-cli ping | grep -q PONG", "interval": "1s", "retries": 60},
    "expose": ["6379"],
}


@contextlib.asynccontextmanager
async def with_servers(data: Path, **settings: object) -> AsyncIterator[Services]:
    async with with_box(data, **settings) as services:
        for name, make_image in (("postgres", postgres_image), ("redis", redis_image)):
            place = make_image(data.parent)
            services.app.images.take(ImageImport(f"{name}:1", place), lambda _step: None)
        yield services


async def query(services: Services, space: Space, sql: str) -> str:
    words = ("psql", "-h", "db", "-U", "postgres", "-At", "-c", sql)
    record = await services.runs.start(space.space_id, Command(words, timeout_s=30), service="db")
    return await output(services, await services.runs.wait(record.run_id))


async def test_postgresql_and_redis_serve_a_space_and_keep_their_data(
    data: Path, tmp_path: Path
) -> None:
    stack = {
        "db": POSTGRES,
        "cache": {**REDIS, "depends_on": {"db": {"condition": "service_healthy"}}},
    }
    project = compose(tmp_path, stack, volumes={"pgdata": None, "redisdata": None})
    async with with_servers(data) as services:
        space = await new(services, project)
        healthy = dict.fromkeys(("db", "cache"), ServicePhase.RUNNING)
        assert states(services, space) == healthy
        assert {one.health for one in services.space_services.of(space)} == {"healthy"}
        assert await query(services, space, "create table t (n int)") == "CREATE TABLE\n"
        assert await query(services, space, "insert into t values (7)") == "INSERT 0 1\n"
        assert await in_service(services, space, "cache", "redis-cli -h cache set a b") == "OK\n"
        assert {one.folder.name for one in services.open_spaces.volumes(space)} == {
            "pgdata",
            "redisdata",
        }
        await services.spaces.stop(LOCAL, space.space_id)
        assert states(services, space) == dict.fromkeys(healthy, ServicePhase.STOPPED)
        space = await services.spaces.start(LOCAL, space.space_id)
        assert states(services, space) == healthy
        assert await query(services, space, "select n from t") == "7\n"
        assert await in_service(services, space, "cache", "redis-cli get a") == "b\n"
        await services.spaces.remove(LOCAL, space.space_id, force=True)
        assert _left(data) == []


async def test_a_service_that_never_gets_healthy_leaves_nothing(data: Path, tmp_path: Path) -> None:
    never = {"test": ["CMD", "false"], "interval": "200ms", "retries": 1, "timeout": "1s"}
    said = "echo I will not listen; sleep 1000"
    web = {"image": "box:1", "command": ["sh", "-c", said], "healthcheck": never}
    project = compose(tmp_path, {"web": web, "other": server("hello")})
    async with with_box(data) as services:
        with pytest.raises(ServiceFailed) as caught:
            await new(services, project)
        assert "web did not become healthy" in caught.value.message
        assert "I will not listen" in caught.value.message
        assert _left(data) == []
        assert services.runs.alive() == []


async def test_the_check_of_an_image_is_run(data: Path, tmp_path: Path) -> None:
    """Unless the file says something of it. Whose image has one has another id."""
    box = busybox_image(tmp_path)
    files = io.BytesIO()
    with tarfile.open(fileobj=files, mode="w") as tar:
        tar.add(box, ".")
    content = files.getvalue()
    test = ["CMD-SHELL", "test -e /up"]
    check = {"Test": test, "Interval": 200_000_000, "Retries": 600, "StartPeriod": 1_500_000_000}
    said = {"Cmd": ["sh", "-c", "touch /up; sleep 1000"], "Healthcheck": check}
    project = compose(
        tmp_path,
        {
            "web": {"image": "well:1"},
            "bare": {"image": "well:1", "healthcheck": {"disable": True}},
            "last": {"image": "box:1", "command": ["true"], "depends_on": HEALTHY_WEB},
        },
    )
    async with with_box(data) as services:
        images = services.app.images
        taken = []
        for config in (said, {**said, "Healthcheck": {"Test": ["NONE"]}}):
            archive = saved(content, config=config_of([content], config=config))
            asked = ImageImport("well:1" if config is said else "bare:1", io.BytesIO(archive))
            taken.append(await asyncio.to_thread(images.take, asked, ignore_progress))
        assert taken[0].image_id != taken[1].image_id
        assert [one.config.health for one in taken] == [
            HealthCheck(("/bin/sh", "-c", "test -e /up"), 1.0, 30.0, 600, 1.5),
            None,
        ]
        space = await new(services, project)
        found = {one.name: one.health for one in services.space_services.of(space)}
        assert found == {"web": "healthy", "bare": "", "last": ""}


HEALTHY_WEB = {"web": {"condition": "service_healthy"}}


async def test_a_service_that_ends_at_once_is_told_with_its_last_lines(
    data: Path, tmp_path: Path
) -> None:
    words = ["sh", "-c", "echo no such setting: x >&2; exit 3"]
    project = compose(tmp_path, {"web": {"image": "box:1", "command": words}})
    async with with_box(data) as services:
        with pytest.raises(ServiceFailed) as caught:
            await new(services, project)
        assert caught.value.code == "service_failed"
        assert "ended with 3" in caught.value.message
        assert "no such setting: x" in caught.value.message
        project = compose(tmp_path, {"web": {"image": "box:1", "command": ["/no/such/program"]}})
        with pytest.raises(ServiceFailed, match="cannot start"):
            await new(services, project)
        assert _left(data) == []


async def test_services_wait_for_those_that_they_depend_on(data: Path, tmp_path: Path) -> None:
    """The job ends well before the server begins, which would fail without what that has left."""
    volumes = ["shared:/shared"]
    job = {"image": "box:1", "command": ["sh", "-c", "sleep 0.3; echo made > /shared/made"]}
    web = server("up", volumes=volumes)
    web["command"] = ["sh", "-c", f"cat /shared/made && {SERVER.format(word='up', port=8080)}"]
    web["depends_on"] = {"job": {"condition": "service_completed_successfully"}}
    stack = {"web": web, "job": {**job, "volumes": volumes}}
    project = compose(tmp_path, stack, volumes={"shared": None})
    async with with_box(data) as services:
        space = await new(services, project)
        assert [one.name for one in space.services] == ["job", "web"]
        assert states(services, space) == {
            "job": ServicePhase.EXITED,
            "web": ServicePhase.RUNNING,
        }
        assert [one.problem for one in services.space_services.of(space)] == ["", ""]
        stack["job"] = {**job, "command": ["false"]}
        with pytest.raises(ServiceFailed, match="job ended with 1"):
            await new(services, compose(tmp_path, stack, volumes={"shared": None}))
        await services.spaces.remove(LOCAL, space.space_id, force=True)
        assert _left(data) == []


async def test_a_service_sees_of_the_project_what_its_file_names(
    data: Path, tmp_path: Path
) -> None:
    project = compose(
        tmp_path,
        {
            "web": server(
                "x",
                volumes=["./conf/app.txt:/etc/app.txt:ro", "/etc/shadow:/shadow", "/kept"],
                tmpfs=["/run:size=64k"],
            ),
            "whole": server("y", port=8081, volumes=[".:/code"], working_dir="/code"),
        },
    )
    (project / "conf").mkdir()
    (project / "conf/app.txt").write_text("one\n")
    async with with_box(data) as services:
        space = await new(services, project)
        assert any("/etc/shadow" in note and "host" in note for note in space.image_notes)
        assert await in_service(services, space, "web", "cat /etc/app.txt") == "one\n"
        assert "denied" in await in_service(
            services, space, "web", "cat /shadow 2>&1 || echo denied"
        )
        assert "Read-only" in await in_service(
            services, space, "web", "echo two > /etc/app.txt || echo Read-only"
        )
        assert (
            await in_service(services, space, "whole", "pwd; echo two > conf/app.txt") == "/code\n"
        )
        assert await in_service(services, space, "web", "cat /etc/app.txt") == "two\n"
        assert (project / "conf/app.txt").read_text() == "one\n"
        # A link that comes later leads inside the service, and not on the host.
        await in_service(
            services, space, "whole", "rm conf/app.txt; ln -s /etc/passwd conf/app.txt"
        )
        assert "root:x:0:0:root:/root:/bin/sh" in await in_service(
            services, space, "web", "cat /etc/app.txt"
        )
        said = await in_service(
            services, space, "web", "ls /run /workspace/.. ; touch /run/x /kept/y"
        )
        assert "carrel" not in said
        await services.spaces.remove(LOCAL, space.space_id, force=True)
        assert leftovers(data, space.space_id) == []


async def test_what_ends_is_started_again_and_given_up_in_the_end(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carrel.service.services.FIRST_PAUSE_S", 0.001)
    crashes = "test -e /kept/crash && { echo crashed; exit 9; }; touch /kept/begun; "
    web = {"image": "box:1", "restart": "always", "volumes": ["/kept"]}
    web["command"] = ["sh", "-c", crashes + SERVER.format(word="hello", port=8080)]
    project = compose(tmp_path, {"web": web})
    async with with_box(data) as services:
        space = await new(services, project)
        first = services.space_services.of(space)[0].run_id
        await services.runs.signal(first, 9)
        await until(lambda: services.space_services.of(space)[0].run_id not in ("", first))
        await until(lambda: states(services, space) == {"web": ServicePhase.RUNNING})
        await in_service(services, space, "web", "touch /kept/crash")
        await services.runs.signal(services.space_services.of(space)[0].run_id, 9)
        await until(lambda: states(services, space) == {"web": ServicePhase.FAILED})
        (found,) = services.space_services.of(space)
        assert (found.code, found.restarts) == (9, 5)
        assert "times in a row" in found.problem
        assert services.journal.current(space.space_id).state == "ready"
        await in_service(services, space, "web", "rm /kept/crash")
        again = await services.space_services.restart(space, "web")
        assert (again.state, again.restarts) == (ServicePhase.RUNNING, 0)
        with pytest.raises(CommandInvalid, match="no service 'nobody'"):
            await services.space_services.restart(space, "nobody")
        with pytest.raises(CommandInvalid, match="no service 'nobody'"):
            await in_service(services, space, "nobody", "true")


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


async def test_a_service_that_gets_ill_is_told(data: Path, tmp_path: Path) -> None:
    check = {"test": "test -e /well", "interval": "100ms", "retries": 2, "start_period": "30s"}
    ill = {
        "image": "box:1",
        "command": ["sh", "-c", "touch /well; sleep 1000"],
        "healthcheck": check,
    }
    project = compose(tmp_path, {"ill": ill})
    async with with_box(data) as services:
        space = await new(services, project)
        await in_service(services, space, "ill", "rm /well")
        await until(lambda: states(services, space) == {"ill": ServicePhase.UNHEALTHY})
        await in_service(services, space, "ill", "touch /well")
        await until(lambda: states(services, space) == {"ill": ServicePhase.RUNNING})
        found = await services.store.events(EventQuery(space_ids=frozenset({space.space_id})))
        told = [one.data["to"] for one in found if one.type == "service.state"]
        assert told == ["starting", "running", "unhealthy", "running"]


async def test_ten_copies_of_a_stack_have_the_same_ports_at_once(
    data: Path, tmp_path: Path
) -> None:
    project = compose(tmp_path, {"web": {**server("${NAME}"), "healthcheck": CHECK}})
    async with with_box(data) as services:
        spaces = await asyncio.gather(
            *(new(services, project, image="box:1", env={"NAME": f"n{n}"}) for n in range(10))
        )
        said = await asyncio.gather(
            *(in_service(services, one, "web", "nc web 8080 </dev/null") for one in spaces)
        )
        assert said == [f"n{n}\n" for n in range(10)]
        networks = await asyncio.gather(
            *(in_service(services, one, "web", "readlink /proc/self/ns/net") for one in spaces)
        )
        assert len(set(networks)) == 10
        for one in spaces:
            await services.spaces.remove(LOCAL, one.space_id, force=True)
        assert _left(data) == []


async def test_runtimes_without_images_say_that_services_need_one(
    data: Path, tmp_path: Path
) -> None:
    project = compose(tmp_path, {"web": server("x")})
    async with with_box(data) as services:
        with pytest.raises(SpaceInvalid, match="has no images, and services need them"):
            await new(services, project, runtime="process")
        with pytest.raises(EnvironmentRefused, match="no compose file"):
            await new(services, empty(tmp_path))
        with pytest.raises(EnvironmentRefused, match="is not there"):
            await new(services, project, services="docker-compose.dev.yml")
        compose(tmp_path, {"web": {"image": "nobody/has-it:1"}})
        with pytest.raises(
            EnvironmentRefused, match="nobody/has-it:1 of the service web is not here"
        ):
            await new(services, project)
        space = await new(services, project, services="", image="auto")
        assert space.services == ()
        assert any("No services run" in note for note in space.image_notes)
        assert leftovers(data) != []


async def test_no_service_is_taken_for_the_host_of_a_key(data: Path, tmp_path: Path) -> None:
    """Beside the agent only names without a dot are found, and none to which the owner sends a
    key: who wrote the file would else say where it goes."""
    names = ["api.anthropic.com", "API.OPENAI.COM", "gateway", "cache.local", "Models", "plain"]
    project = compose(
        tmp_path,
        {
            "api.example.org": server("hello"),
            "web": server("x", port=8081, networks={"n": {"aliases": names}}, hostname="db.shop"),
        },
        networks={"n": {}},
    )
    keys = Credentials(data / "auth")
    keys.set("anthropic", "v", ["http://gateway:4000", "http://MODELS/v1"])
    async with with_box(data) as services:
        space = await new(services, project, image="box:1")
        bare = await new(services, project)
        for one in (space, bare):
            command = Command(("cat", "/etc/hosts"))
            record = await services.runs.start(one.space_id, command, place=CommandPlace.AGENT)
            said = await output(services, await services.runs.wait(record.run_id))
            assert said == LOCAL_HOSTS + "127.0.0.1 web\n127.0.0.1 plain\n"
        _, said = await run(services, space, "nc cache.local 8081 </dev/null; cat /etc/hosts")
        assert said.startswith("x\n")
        assert {*names, "api.example.org", "db.shop"} <= set(said.split())


def empty(folder: Path) -> Path:
    place = folder / "empty"
    place.mkdir()
    return place


async def test_an_image_by_the_project_brings_its_services(data: Path, tmp_path: Path) -> None:
    """Those of its compose file, or of the one that its devcontainer.json names."""
    project = compose(tmp_path, {"web": server("hello")})
    async with with_box(data) as services:
        space = await new(services, project, services="", image="auto")
        assert states(services, space) == {"web": ServicePhase.RUNNING}
        (_, said) = await run(services, space, "cat /etc/hosts")
        assert "127.0.0.1 web" in said
        none = await new(services, project, services="none", image="auto")
        assert none.services == ()
        opened_up = await new(services, project, services="", image="auto", network=Network.OPEN)
        assert opened_up.services == ()
        assert any("--services auto runs them all the same" in one for one in opened_up.image_notes)
        unasked = await new(services, project, services="")
        assert unasked.services == ()
        assert any("unless you ask for them: --services auto" in one for one in unasked.image_notes)
        stack = {"dev": {"image": "box:1", "environment": {"DB": "db"}}, "db": server("hello")}
        compose(tmp_path, {**stack, "more": server("y", port=8081)})
        content = {"dockerComposeFile": "compose.yaml", "service": "dev", "runServices": ["db"]}
        (project / ".devcontainer.json").write_text(json.dumps(content))
        space = await new(services, project, services="", by_devcontainer=True)
        assert states(services, space) == {"db": ServicePhase.RUNNING}
        (_, said) = await run(services, space, "echo $DB; nc db 8080 </dev/null")
        assert said == "db\nhello\n"


async def test_forks_and_what_is_brought_back_have_services_of_their_own(
    data: Path, tmp_path: Path
) -> None:
    project = compose(
        tmp_path, {"web": server("hello", volumes=["kept:/kept"])}, volumes={"kept": {}}
    )
    async with with_box(data) as services:
        space = await new(services, project)
        await run(services, space, "echo changed > new.txt")
        await in_service(services, space, "web", "echo first > /kept/data; echo first > /etc/own")
        asked = ForkRequest(name="fork")
        (fork,) = (await services.checkpoints.fork(LOCAL, space.space_id, asked)).spaces
        assert states(services, fork) == {"web": ServicePhase.RUNNING}
        assert fork.services[0].image.image_id == space.services[0].image.image_id
        look = "cat /kept/data /etc/own"
        await in_service(services, space, "web", "echo second > /kept/data")
        assert await in_service(services, fork, "web", look) == "first\nfirst\n"
        await services.spaces.remove(LOCAL, space.space_id, force=True)
        back = await services.spaces.undelete(LOCAL, space.space_id)
        assert states(services, back) == {"web": ServicePhase.RUNNING}
        assert await in_service(services, back, "web", look) == "second\nfirst\n"


async def test_a_rewind_takes_the_data_of_services_back(data: Path, tmp_path: Path) -> None:
    """They do not go on in files that were replaced."""
    volumes = ["kept:/kept"]
    project = compose(tmp_path, {"web": server("hello", volumes=volumes)}, volumes={"kept": {}})
    async with with_box(data) as services:
        space = await new(services, project)
        await in_service(services, space, "web", "echo first > /kept/data; echo first > /etc/own")
        (before,) = services.space_services.of(space)
        taken = await services.checkpoints.take(LOCAL, space.space_id, "")
        await in_service(services, space, "web", "echo second > /kept/data; rm /etc/own")
        await services.checkpoints.rewind(LOCAL, space.space_id, taken.checkpoint_id)
        (now,) = services.space_services.of(space)
        assert now.state is ServicePhase.RUNNING and now.run_id != before.run_id
        look = "cat /kept/data /etc/own"
        assert await in_service(services, space, "web", look) == "first\nfirst\n"


async def test_the_trash_keeps_no_key_that_a_compose_file_refers_to(
    data: Path, tmp_path: Path
) -> None:
    key = "hunter2-9f8a7b6c5d"
    web = server("hello", environment={"OWN": "${DB_PASSWORD}", "URL": "db://u:${DB_PASSWORD}@db"})
    web["command"] = ["sh", "-c", ": ${DB_PASSWORD}; exec sleep 1000"]
    web["healthcheck"] = {"test": "test -n '${DB_PASSWORD}'", "interval": "1s"}
    async with with_box(data) as services:
        env = {"DB_PASSWORD": key}
        space = await new(services, compose(tmp_path, {"web": web}), env=env)
        await in_service(services, space, "web", "echo own > /own")
        await services.spaces.remove(LOCAL, space.space_id, force=True)
        (kept,) = await services.spaces.trashed(LOCAL)
        assert key not in repr(kept)
        assert kept.space.services[0].spec.environment == {"URL": "db://u:@db"}


async def test_a_rewind_to_the_start_gives_volumes_what_they_began_with(
    data: Path, tmp_path: Path
) -> None:
    stack = {"web": server("hello", volumes=["programs:/bin"])}
    async with with_box(data) as services:
        space = await new(services, compose(tmp_path, stack, volumes={"programs": {}}))
        look = "ls -ln /bin"
        before = await in_service(services, space, "web", look)
        await in_service(services, space, "web", "echo own > /bin/own; rm /bin/nc")
        rewound = await services.checkpoints.rewind(LOCAL, space.space_id, START)
        assert states(services, space) == {"web": ServicePhase.RUNNING}
        again = await in_service(services, space, "web", look)
        assert [line.split()[:4] for line in again.splitlines()[1:]] == [
            line.split()[:4] for line in before.splitlines()[1:]
        ]
        assert "own" in await _after_undo(services, space, rewound.checkpoint_id, look)


async def _after_undo(services: Services, space: Space, rewind: str, script: str) -> str:
    await services.checkpoints.undo(rewind)
    return await in_service(services, space, "web", script)


async def test_after_a_rewind_all_are_looked_after_though_one_fails(
    data: Path, tmp_path: Path
) -> None:
    script = "test ! -e /kept/bad || { echo bad data; exit 3; }; exec sleep 1000"
    picky = {"image": "box:1", "command": ["sh", "-c", script], "volumes": ["kept:/kept"]}
    project = compose(tmp_path, {"picky": picky, "web": server("hello")}, volumes={"kept": {}})
    async with with_box(data) as services:
        space = await new(services, project)
        await in_service(services, space, "picky", "touch /kept/bad")
        taken = await services.checkpoints.take(LOCAL, space.space_id, "")
        await in_service(services, space, "picky", "rm /kept/bad")
        await services.checkpoints.rewind(LOCAL, space.space_id, taken.checkpoint_id)
        picky_now, web = services.space_services.of(space)
        assert (picky_now.state, picky_now.code) == (ServicePhase.EXITED, 3)
        assert web.run_id
        again = await services.space_services.restart(space, "web")
        assert again.state is ServicePhase.RUNNING and again.run_id != web.run_id


async def test_who_restarts_a_service_at_the_same_time_leaves_one_of_it(
    data: Path, tmp_path: Path
) -> None:
    project = compose(tmp_path, {"web": server("hello", stop_grace_period="0s")})
    async with with_box(data) as services:
        space = await new(services, project)
        restarts = (services.space_services.restart(space, "web") for _ in range(3))
        await asyncio.gather(*restarts, return_exceptions=True)
        alive = [one.run_id for one in services.runs.alive() if one.service == "web"]
        assert alive == [one.run_id for one in services.space_services.of(space)]


async def test_a_chain_that_ignores_its_signals_is_stopped_in_bounded_time(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carrel.service.services.MOST_STOP_S", 1.0, raising=False)
    deaf = ["sh", "-c", "trap '' TERM; while true; do sleep 1000; done"]
    chain = {
        name: {
            "image": "box:1",
            "command": deaf,
            "stop_grace_period": "1m",
            "depends_on": [above] if above else [],
        }
        for name, above in (("a", ""), ("b", "a"), ("c", "b"))
    }
    async with with_box(data) as services:
        space = await new(services, compose(tmp_path, chain))
        async with asyncio.timeout(45):
            await services.spaces.stop(LOCAL, space.space_id)


@pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run")
def test_the_same_as_an_ordinary_user(ordinary_user: Account, data: Path) -> None:
    """With one id, and sandboxes in the launcher's namespace."""
    names = "beside_the_commands or sees_of_the_project or to_the_start"
    names += "".join(beyond(" or postgresql", " or ten_copies"))
    run_again(__file__, ordinary_user, data, "-k", names, timeout_s=300.0)


HOG = "i=0; a=x; while [ $i -lt 25 ]; do a=$a$a; i=$((i+1)); done; touch /grown; sleep 1000"


async def test_the_limits_of_a_space_hold_for_its_services(data: Path, tmp_path: Path) -> None:
    if not any(one.enforced for one in Cgroups().support() if one.kind is LimitKind.MEMORY):
        pytest.skip("no memory limits can be enforced here")
    grown = {"test": "test -e /grown", "interval": "1s", "retries": 120}
    script = HOG.replace("$", "$$")
    hog = {"image": "box:1", "command": ["sh", "-c", script], "healthcheck": grown}
    project = compose(tmp_path, {"hog": hog})
    async with with_box(data) as services:
        with pytest.raises(ServiceFailed, match="signal 9"):
            await new(services, project, limits=Limits(memory_bytes=48 << 20))
        assert _left(data) == []
        fits = await new(services, project, limits=Limits(memory_bytes=1 << 30))
        assert states(services, fits) == {"hog": ServicePhase.RUNNING}


LEAVES = (
    "test -e /kept/left && test -d /proc/$$(cat /kept/left) && touch /kept/bad; "
    "setsid sleep 1000 & echo $$! > /kept/left; exec sleep 1001"
)


async def test_what_a_service_leaves_running_ends_with_it(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carrel.service.services.FIRST_PAUSE_S", 0.001)
    web = {"image": "box:1", "restart": "always", "volumes": ["/kept"]}
    project = compose(tmp_path, {"web": {**web, "command": ["sh", "-c", LEAVES]}})
    async with with_box(data) as services:
        space = await new(services, project)
        first = services.space_services.of(space)[0].run_id
        await services.runs.signal(first, 9)
        await until(lambda: services.space_services.of(space)[0].run_id not in ("", first))
        await until(lambda: states(services, space) == {"web": ServicePhase.RUNNING})
        said = await in_service(services, space, "web", "ls /kept")
        assert said == "left\n"


async def test_the_isolation_holds_in_services_as_well(data: Path, tmp_path: Path) -> None:
    volumes = ["./compose.yaml:/etc/x.yaml", "kept:/kept"]
    project = compose(tmp_path, {"web": server("a", volumes=volumes)}, volumes={"kept": None})
    async with with_box(data) as services:
        space = await new(services, project)
        proof = await services.spaces.verify(LOCAL, space.space_id)
        assert proof.holds
        keys = [system.key for system in services.open_spaces.systems(space)]
        assert [key[:3] for key in keys] == ["va_"]
        (volume,) = services.open_spaces.volumes(space)
        assert volume.folder.is_dir()
