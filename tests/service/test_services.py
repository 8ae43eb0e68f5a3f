"""Services of a project's compose file, in spaces that are made for real."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.errors import EnvironmentRefused, ServiceFailed, SpaceInvalid
from carrel.domain.images import ImageImport
from carrel.domain.runtimes import Command
from carrel.domain.services import ServiceState
from carrel.domain.spaces import Space
from tests.busybox import busybox_image
from tests.service.rig import leftovers, opened, output, request, run
from tests.service_images import postgres_image, redis_image

SERVER = "while true; do echo {word} | nc -l -p {port}; done"
CHECK = {"test": ["CMD", "nc", "-z", "127.0.0.1", "{port}"], "interval": "1s"}


@contextlib.asynccontextmanager
async def with_box(data: Path, **settings: object) -> AsyncIterator[Services]:
    async with opened(data, **settings) as services:
        box = busybox_image(data.parent)
        services.app.images.take(ImageImport("box:1", box), lambda _step: None)
        yield services


def server(word: str, port: int = 8080, **more: object) -> dict[str, object]:
    return {"image": "box:1", "command": ["sh", "-c", SERVER.format(word=word, port=port)], **more}


def compose(folder: Path, services: dict[str, object], **top: object) -> Path:
    project = folder / "shop"
    project.mkdir(exist_ok=True)
    (project / "compose.yaml").write_text(yaml.safe_dump({"services": services, **top}))
    return project


def states(services: Services, space: Space) -> dict[str, ServiceState]:
    return {one.name: one.state for one in services.space_services.of(space)}


async def new(services: Services, project: Path | None, **options: object) -> Space:
    asked = request(project, **{"services": "auto", **options})
    return await services.spaces.create(LOCAL, asked)


async def in_service(services: Services, space: Space, name: str, script: str) -> str:
    record = await services.runs.start(
        space.space_id, Command(("sh", "-c", script), timeout_s=30), service=name
    )
    return await output(services, await services.runs.wait(record.run_id))


async def test_a_service_runs_beside_the_commands_of_its_space(data: Path, tmp_path: Path) -> None:
    project = compose(tmp_path, {"greeter": server("hello")})
    async with with_box(data) as services:
        space = await new(services, project, image="box:1")
        assert states(services, space) == {"greeter": ServiceState.RUNNING}
        assert space.state == "ready"
        record, said = await run(services, space, "nc greeter 8080 </dev/null")
        assert (record.exit.code, said) == (0, "hello\n")
        assert "bin" in await in_service(services, space, "greeter", "ls /")
        await services.spaces.remove(LOCAL, space.space_id, force=True)
        assert leftovers(data) == []


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
    "healthcheck": {"test": ["CMD", "pg_isready", "-h", "127.0.0.1"], "interval": "1s", "retries": 60},
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
    stack = {"db": POSTGRES, "cache": {**REDIS, "depends_on": {"db": {"condition": "service_healthy"}}}}
    project = compose(tmp_path, stack, volumes={"pgdata": None, "redisdata": None})
    async with with_servers(data) as services:
        space = await new(services, project)
        healthy = dict.fromkeys(("db", "cache"), ServiceState.RUNNING)
        assert states(services, space) == healthy
        assert {one.health for one in services.space_services.of(space)} == {"healthy"}
        assert await query(services, space, "create table t (n int)") == "CREATE TABLE\n"
        assert await query(services, space, "insert into t values (7)") == "INSERT 0 1\n"
        assert await in_service(services, space, "cache", "redis-cli -h cache set a b") == "OK\n"
        assert {path.name for path in services.open_spaces.volumes(space)} == {"pgdata", "redisdata"}
        assert await services.spaces.stop(LOCAL, space.space_id)
        assert states(services, space) == dict.fromkeys(healthy, ServiceState.STOPPED)
        space = await services.spaces.start(LOCAL, space.space_id)
        assert states(services, space) == healthy
        assert await query(services, space, "select n from t") == "7\n"
        assert await in_service(services, space, "cache", "redis-cli get a") == "b\n"
        await services.spaces.remove(LOCAL, space.space_id, force=True)
        assert leftovers(data) == []
