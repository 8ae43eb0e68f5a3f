"""Packages that one space has fetched and the next of its project need not fetch again, with a real
pip, npm and cargo; and what no space gets from another."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.runtimes import Network
from carrel.domain.spaces import Space
from carrel.service.family import Child
from carrel.trees.download_caches import SHOWN_AT
from tests.accounts import Account
from tests.environments.homes import readable_rust, real_rust
from tests.environments.registries import (
    CRATE,
    TARBALL,
    Registry,
    integrity,
    serving,
    tarball,
    wheel_path,
)
from tests.sampling import EXHAUSTIVE
from tests.service.rig import family_of, make, opened, request, run
from tests.trees.again import run_again

TENANT = Caller("tk_1", Scope(ScopeKind.LABEL, "team=blue"))
PIP = "python3 -m pip install --disable-pip-version-check --target lib hello"
NPM = "npm install --no-audit --no-fund --no-update-notifier hello"
SAYS = "PYTHONPATH=lib python3 -c 'import hello; print(hello.SAYS)'; node -p 'require(\"hello\")'"
WORK = f"{PIP} && {NPM} && {SAYS}"
OPEN = {"network": Network.OPEN}
CARGO = "cargo run --quiet --locked"
MANIFEST = """[package]
name = "own"
version = "0.1.0"
edition = "2021"
[dependencies]
hello = "1"
"""

WITHOUT_ROOT = "again or hostile" if EXHAUSTIVE else "package_again or hostile"


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving() as registry:
        yield registry


@pytest.fixture
async def services(
    data: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Services]:
    """Of a person who trusts the index: else pip keeps nothing that came without TLS."""
    folder = data / "ada"
    (folder / ".config" / "pip").mkdir(parents=True)
    (folder / ".config" / "pip" / "pip.conf").write_text(
        f"[global]\nindex-url = {registry.pip}\ntrusted-host = {registry.host}\n"
    )
    (folder / ".npmrc").write_text(f"registry={registry.npm}\n")
    (folder / ".cargo").mkdir()
    (folder / ".cargo" / "config.toml").write_text(
        '[source.crates-io]\nreplace-with = "mirror"\n'
        f'[source.mirror]\nregistry = "{registry.cargo}"\n'
    )
    for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder))
    async with opened(data / "data") as services:
        yield services


async def does(services: Services, space: Space, script: str) -> str:
    record, said = await run(services, space, script)
    assert record.exit and record.exit.code == 0, said
    return said


def bodies(registry: Registry) -> list[str]:
    """What was asked for since the last time, of packages themselves."""
    asked = [path for path in registry.asked if path in (TARBALL, wheel_path())]
    registry.asked.clear()
    return asked


async def test_the_next_space_fetches_no_package_again(
    services: Services, registry: Registry, tmp_path: Path
) -> None:
    first = await make(services, tmp_path, **OPEN)
    assert "hi\nhi\n" in await does(services, first, WORK)
    assert sorted(bodies(registry)) == sorted((TARBALL, wheel_path()))
    second = await make(services, tmp_path, **OPEN)
    assert "hi\nhi\n" in await does(services, second, WORK)
    assert bodies(registry) == []
    # All that npm needs to know is in a lock file, so it asks for nothing.
    lock = {
        "lockfileVersion": 3,
        "packages": {
            "": {"dependencies": {"hello": "1.0.0"}},
            "node_modules/hello": {
                "version": "1.0.0",
                "resolved": f"http://{registry.host}{TARBALL}",
                "integrity": integrity(tarball()),
            },
        },
    }
    (tmp_path / "package.json").write_text('{"dependencies": {"hello": "1.0.0"}}')
    (tmp_path / "package-lock.json").write_text(json.dumps(lock))
    for space in (first, second):
        await services.spaces.remove(LOCAL, space.space_id, force=True)
    third = await make(services, tmp_path, **OPEN)
    assert "hi" in await does(
        services, third, "npm ci --no-audit --no-update-notifier && node -p 'require(\"hello\")'"
    )
    assert registry.asked == []


async def test_cargo_fetches_no_crate_again(
    services: Services, registry: Registry, tmp_path: Path
) -> None:
    """What the project's lock file names; a hostile space changes nothing about it."""
    real_rust(Path(os.environ["HOME"]))
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.rs").write_text('fn main() { println!("{}", hello::SAYS) }\n')
    (tmp_path / "Cargo.toml").write_text(MANIFEST)
    first = await make(services, tmp_path, **OPEN)
    lock = await does(services, first, "cargo generate-lockfile --quiet && cat Cargo.lock")
    assert await does(services, first, CARGO) == "hi\n"
    assert f"{CRATE}/download" in registry.asked
    plain = await make(services, tmp_path, **OPEN)
    assert await does(services, plain, "find ~/.cargo -type l") == "", "nothing says what is right"
    (tmp_path / "Cargo.lock").write_text(lock)
    evil = "for one in $(find ~/.cargo -name '*.crate'); do rm $one; echo evil > $one; done"
    await does(services, plain, f"{CARGO.removesuffix(' --locked')}; {evil}")
    hostile = await make(services, tmp_path, **OPEN)
    await does(services, hostile, evil)
    registry.asked.clear()
    later = await make(services, tmp_path, **OPEN)
    assert await does(services, later, CARGO) == "hi\n"
    assert registry.asked and f"{CRATE}/download" not in registry.asked


async def test_who_shares(services: Services, registry: Registry, tmp_path: Path) -> None:
    """Spaces of one project: packages may be private."""
    other = tmp_path / "other"
    other.mkdir()
    project = tmp_path / "project"
    project.mkdir()
    first = await make(services, project, **OPEN)
    await does(services, first, NPM)
    child = await family_of(services).spawn(first.space_id, Child())
    assert child.downloads == first.downloads != ""
    assert "sha512" in await does(services, child, "find ~/.npm -type l")
    apart = [
        await make(services, other, **OPEN),
        await make(services, project, **OPEN, with_credentials=True),
        await make(services, project, **OPEN, share_downloads=False),
    ]
    for space in apart:
        assert space.downloads != first.downloads
        assert await does(services, space, "find ~ -type l") == ""
    for space in (
        await make(services, project),
        await make(services, network=Network.OPEN),
        await make(services, project, **OPEN, runtime="landlock"),
        await services.spaces.create(
            TENANT, request(labels={"team": "blue"}, network=Network.OPEN)
        ),
    ):
        assert not space.downloads
        assert SHOWN_AT not in await does(services, space, "cat /proc/self/mountinfo")
    async with opened(services.settings.data / "off", sandbox={"caches_bytes": 0}) as off:
        assert not (await make(off, project, **OPEN)).downloads


async def test_nobody_gets_what_a_hostile_space_has_put_there(
    services: Services, registry: Registry, tmp_path: Path
) -> None:
    """It has every file of its caches say something else, by every way that it has."""
    first = await make(services, tmp_path, **OPEN)
    await does(services, first, WORK)
    hostile = await make(services, tmp_path, **OPEN)
    poison = """
        cd ~
        for file in $(find .npm .cache -type f -o -type l); do
            chmod u+w "$file"; echo evil > "$file" 2>/dev/null
            rm "$file"; echo evil > "$file"
        done
        for file in /run/carrel-downloads/*; do
            chmod 666 "$file" && exit 3; echo evil > "$file" && exit 4; rm -f "$file" && exit 5
        done 2>/dev/null
        touch /run/carrel-downloads/new && exit 6
        ln -s /etc/passwd .npm/_cacache/content-v2/sha512/00
        mkfifo .npm/_cacache/content-v2/sha512/01
        true
    """
    await does(services, hostile, poison)
    bodies(registry)
    later = await make(services, tmp_path, **OPEN)
    assert "hi\nhi\n" in await does(services, later, WORK)
    assert bodies(registry) == []
    await services.spaces.remove(LOCAL, hostile.space_id, force=True)
    await does(services, later, "! grep -rl evil ~/.npm ~/.cache /run/carrel-downloads")


async def test_a_home_with_many_of_them_keeps_nobody_waiting(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await make(services, tmp_path, **OPEN)
    plant = """import gzip, hashlib, os
for number in range(20):
    content = gzip.compress(b"%d" % number)
    name = hashlib.sha512(content).hexdigest()
    folder = os.path.expanduser(f"~/.npm/_cacache/content-v2/sha512/{name[:2]}/{name[2:4]}")
    os.makedirs(folder, exist_ok=True)
    open(f"{folder}/{name[4:]}", "wb").write(content)
"""
    await does(services, first, f"python3 - <<'END'\n{plant}END")
    link, threads = os.symlink, set()

    def symlink(*words: Any, **named: Any) -> None:
        threads.add(threading.current_thread())
        link(*words, **named)

    monkeypatch.setattr(os, "symlink", symlink)
    later = await make(services, tmp_path, **OPEN)
    assert threads and threading.main_thread() not in threads
    assert "20" in await does(services, later, "find ~/.npm -type l | wc -l")


async def test_clean_up(services: Services, tmp_path: Path) -> None:
    space = await make(services, tmp_path, **OPEN)
    await does(services, space, NPM)
    await make(services, tmp_path, **OPEN)
    folder = services.settings.data / "downloads"
    report = await services.operations.cleanup._disk_use.report(LOCAL)
    assert [part for part in report.parts if part.kind == "downloads" and part.bytes]
    await services.collector.run(LOCAL, all_bases=True)
    assert len(list((folder / space.downloads).iterdir())) == 1
    for one in services.journal.all():
        await services.spaces.remove(LOCAL, one.space_id, force=True)
    await services.collector.run(LOCAL)
    assert list((folder / space.downloads).iterdir())
    (action,) = [
        one
        for one in (await services.collector.run(LOCAL, all_bases=True)).actions
        if one.target == space.downloads
    ]
    assert action.bytes_freed > 0 and list(folder.iterdir()) == []


def test_as_an_ordinary_user(ordinary_user: Account, data: Path) -> None:
    env = readable_rust(data)
    run_again(__file__, ordinary_user, data, "-k", WITHOUT_ROOT, env=env)
