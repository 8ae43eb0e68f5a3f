"""Package managers in spaces: their settings, with a real pip, npm, uv, cargo and apt."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from functools import partial
from io import BytesIO
from pathlib import Path

import pytest

from carrel.api.types.runs import RunBody, RunListQuery, SignalBody
from carrel.app.service import Services
from carrel.config import parse_settings
from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.environments import NO_SETTINGS
from carrel.domain.errors import (
    Forbidden,
    NameTaken,
    SetupFailed,
    SpaceInvalid,
    SpaceNotFound,
    StateConflict,
)
from carrel.domain.instances import InstanceRequest, Server
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.runtimes import Command, Network
from carrel.domain.spaces import Space, SpaceQuery, SpaceRequest, SpaceState
from carrel.domain.turns import TurnRequest
from carrel.environments.package_settings import PackageManagers
from carrel.service.family import Child
from carrel.service.spaces import SpaceChanges
from tests.accounts import Account
from tests.environments.homes import readable_rust, real_rust, real_uv
from tests.environments.registries import CRATE, TARBALL, Registry, serving, wheel_path
from tests.environments.test_package_settings import CERTIFICATE
from tests.sampling import beyond
from tests.service.rig import RUN_S, family_of, leftovers, make, opened, request, run
from tests.trees.again import run_again
from tests.trees.git.repositories import make_repository

TENANT = Caller("tk_1", Scope(ScopeKind.LABEL, "team=blue"))
SECRET = "s3cr3t"
PIP = "python3 -m pip install --disable-pip-version-check --target lib hello"
NPM = "npm install --no-audit --no-fund --no-update-notifier hello"
WORK = f"{PIP} && PYTHONPATH=lib python3 -c 'import hello; print(hello.SAYS)' && {NPM}"


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving() as registry:
        yield registry


@pytest.fixture
def home(data: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person's, whose index wants a password from everybody else."""
    folder = data / "ada"
    (folder / ".config" / "pip").mkdir(parents=True)
    (folder / ".config" / "pip" / "pip.conf").write_text(
        f"[global]\nindex-url = http://ada:{SECRET}@{registry.host}/simple\n"
    )
    (folder / ".npmrc").write_text(
        f"registry={registry.npm}\nscript-shell=/bin/false\n"
        f"//{registry.host}/npm/:_authToken={SECRET}\n"
    )
    (folder / "ca.pem").write_text(CERTIFICATE)
    for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NODE_EXTRA_CA_CERTS", str(folder / "ca.pem"))
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.fixture
async def services(data: Path, home: Path) -> AsyncIterator[Services]:
    async with opened(data / "data") as services:
        yield services


async def says(services: Services, space: Space, script: str) -> str:
    return (await run(services, space, script))[1]


async def test_they_work_as_the_owner_has_set_them_up(
    services: Services, home: Path, registry: Registry, tmp_path: Path
) -> None:
    space = await make(services, tmp_path, network=Network.OPEN)
    record, said = await run(services, space, WORK)
    assert record.exit and record.exit.code == 0, said
    assert "\nhi\n" in said and registry.passwords == []
    everything = await says(services, space, "env; cat ~/.npmrc ~/.config/pip/pip.conf ~/.netrc")
    assert SECRET not in everything and "script-shell" not in everything
    assert CERTIFICATE in await says(services, space, 'cat "$NODE_EXTRA_CA_CERTS"')
    assert "Read-only" in await says(services, space, 'echo x > "$NODE_EXTRA_CA_CERTS"')
    assert "the password in pip global.index-url" in space.packages.withheld
    asked = await make(services, tmp_path, network=Network.OPEN, with_credentials=True)
    record, said = await run(services, asked, WORK)
    assert record.exit and record.exit.code == 0, said
    assert {one.split()[0] for one in registry.passwords} == {"Basic", "Bearer"}
    assert not asked.packages.withheld
    assert await says(services, asked, "stat -c %a ~/.npmrc") == "600\n"


async def test_uv_finds_what_the_project_was_set_up_with(
    services: Services, home: Path, registry: Registry, tmp_path: Path
) -> None:
    """By the owner's settings, without the password; and later spaces fetch nothing."""
    real_uv(home)
    (home / ".config" / "uv").mkdir()
    (home / ".config" / "uv" / "uv.toml").write_text(
        f'[[index]]\nurl = "http://ada:{SECRET}@{registry.host}/simple"\ndefault = true\n'
    )
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "own"\nversion = "1"\nrequires-python = ">=3.11"\n'
        'dependencies = ["hello"]\n'
    )
    space = await make(services, tmp_path, network=Network.OPEN)
    record, said = await run(services, space, "uv lock --quiet && cat uv.lock")
    assert record.exit and record.exit.code == 0, said
    (tmp_path / "uv.lock").write_text(said)
    registry.asked.clear()
    first = await make(services, tmp_path, network=Network.OPEN, run_setup=True)
    assert first.setup == ("uv sync",) and wheel_path() in registry.asked
    registry.asked.clear()
    later = await make(services, tmp_path, network=Network.OPEN, run_setup=True)
    says_hi = "uv sync && .venv/bin/python -c 'import hello; print(hello.SAYS)'"
    assert "hi\n" in await says(services, later, says_hi)
    assert registry.asked == [] == registry.passwords


async def test_cargo_obeys_the_settings(
    services: Services, home: Path, registry: Registry, tmp_path: Path
) -> None:
    (home / ".cargo").mkdir()
    (home / ".cargo" / "config.toml").write_text(
        f'[registries.mirror]\nindex = "{registry.cargo}"\n[registry]\ndefault = "mirror"\n'
        '[source.crates-io]\nreplace-with = "mirror"\n[build]\nrustc-wrapper = "/bin/false"\n'
        f'[source.mirror]\nregistry = "{registry.cargo}"\n'
    )
    (home / ".cargo" / "credentials.toml").write_text(f'[registries.mirror]\ntoken = "{SECRET}"\n')
    real_rust(home)
    space = await make(services, tmp_path, network=Network.OPEN)
    work = "cargo init --quiet --name own && cargo add --quiet hello && cargo build --quiet"
    record, said = await run(services, space, work)
    assert record.exit and record.exit.code == 0, said
    assert f"{CRATE}/download" in registry.asked and registry.passwords == []


APT = "apt-get -q update && cd /tmp && apt-get -q download hello && dpkg-deb -x hello*.deb /tmp/x"


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs apt")
async def test_apt_fetches_and_installs_nothing(
    data: Path, home: Path, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the machine's sources and through its proxy, without the password of either."""
    apt, proxy = data / "system" / "etc" / "apt", f"http://ada:{SECRET}@{registry.host}"
    for name, text in {
        "apt.conf.d/50proxy": f'Acquire {{ http {{ Proxy "{proxy}"; }}; }};',
        "apt.conf.d/90hook": 'APT::Update::Pre-Invoke { "touch /tmp/evil"; };',
        "sources.list": f"deb [trusted=yes] http://ada:{SECRET}@deb.invalid/apt ./\n",
        "auth.conf.d/corp.conf": f"machine deb.invalid login ada password {SECRET}\n",
    }.items():
        (apt / name).parent.mkdir(parents=True, exist_ok=True)
        (apt / name).write_text(text)
    found = partial(PackageManagers, system=data / "system")
    monkeypatch.setattr("carrel.app.service.PackageManagers", found)
    async with opened(data / "data") as services:
        space = await make(services, tmp_path, network=Network.OPEN)
        record, said = await run(services, space, f"{APT} && cat /tmp/x/usr/share/hello")
        assert record.exit and record.exit.code == 0 and "\nhi\n" in said, said
        assert registry.passwords == [] and "http://deb.invalid/apt/./hello.deb" in registry.asked
        everything = "grep -r . /etc/apt/*conf* ~/.config/apt; ls /tmp; apt-get install -y hello"
        record, said = await run(services, space, everything)
        assert SECRET not in said and "evil" not in said and registry.host in said
        assert record.exit and record.exit.code, said
        assert "the password in apt acquire::http::proxy" in space.packages.withheld
        asked = await make(services, tmp_path, network=Network.OPEN, with_credentials=True)
        record, said = await run(services, asked, APT)
        assert record.exit and record.exit.code == 0, said
        assert len(set(registry.passwords)) and not asked.packages.withheld


async def test_who_gets_them(services: Services, home: Path, tmp_path: Path) -> None:
    theirs = await services.spaces.create(TENANT, request(labels={"team": "blue"}))
    assert await says(services, theirs, "ls -A; env | grep -c CERTS") == "0\n"
    with pytest.raises(Forbidden, match="credentials"):
        await services.spaces.create(TENANT, request(with_credentials=True))
    plain = await make(services, tmp_path)
    asked = await make(services, tmp_path, with_credentials=True)
    for space in (theirs, plain, asked):
        child = await family_of(services).spawn(space.space_id, Child())
        assert child.packages == space.packages
        assert (SECRET in await says(services, child, "cat ~/.npmrc")) == (space is asked)
    # Nothing of the credentials is kept of those that are gone.
    await says(services, asked, "echo kept > file")
    for space in services.journal.all():
        await services.spaces.remove(LOCAL, space.space_id, force=True)
    assert (await services.spaces.get(LOCAL, asked.space_id)).packages == NO_SETTINGS
    (trashed,) = await services.spaces.trashed(LOCAL)
    assert trashed.space.packages == NO_SETTINGS
    off = {"data": services.settings.data, "sandbox": {"package_settings": False}}
    assert not parse_settings(off).sandbox.package_settings


async def test_set_up_once_for_all_spaces_of_a_base(
    services: Services, registry: Registry, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "package.json").write_text('{"dependencies": {"hello": "1.0.0"}}')
    wanted = {"network": Network.OPEN, "run_setup": True}
    spaces = await asyncio.gather(*(make(services, tmp_path, **wanted) for _ in range(2)))
    first, second = spaces
    assert first.setup == ("npm install",) and first.base_id == second.base_id
    assert registry.asked.count(TARBALL) == 1
    assert "hi" in await says(services, first, "node -p 'require(\"hello\")'; rm -r node_modules")
    assert "hi" in await says(services, second, "node -p 'require(\"hello\")'")
    assert not await services.spaces.unexported(second)
    plain = await make(services, tmp_path, network=Network.OPEN)
    assert await says(services, plain, "ls") == "package.json\n" and not plain.setup
    # Neither what another account has set up, nor what was set up otherwise.
    other = await make(services, tmp_path, **wanted, env={"CI": "1"})
    assert other.base_id != first.base_id
    (tmp_path / "package.json").write_text('{"dependencies": {"hello": "^1.0.0"}}')
    assert (await make(services, tmp_path, **wanted)).base_id not in (first.base_id, other.base_id)
    assert len(list((data / "data" / "setups").iterdir())) == 3
    assert {space.space_id for space in services.journal.all()} >= {first.space_id}
    assert not [space for space in services.journal.all() if space.transient]


async def test_a_project_that_says_that_it_is_set_up(
    services: Services, registry: Registry, tmp_path: Path
) -> None:
    """A folder of the owner's: for nobody else, and for no other project."""
    (tmp_path / "package.json").write_text('{"dependencies": {"hello": "1.0.0"}}')
    own = tmp_path / "carrel.toml"
    own.write_text('[setup]\nrun = ["npm install", ["touch", "made here"]]\n')
    first = await make(services, tmp_path, network=Network.OPEN)
    second = await make(services, tmp_path, network=Network.OPEN)
    assert first.setup == ("npm install", "touch 'made here'") == second.setup
    assert first.base_id == second.base_id and registry.asked.count(TARBALL) == 1
    assert "made here" in await says(services, second, "node -p 'require(\"hello\")'; ls")
    child = await family_of(services).spawn(second.space_id, Child())
    assert child.base_id == first.base_id
    # It has no more than the space has: no network here. The error says how to do without.
    own.write_text('[setup]\nrun = "env > made; ls ~ >> made; exit 3"\n')
    with pytest.raises(SetupFailed, match="ended with 3") as error:
        await make(services, tmp_path)
    assert "--no-setup" in error.value.hint
    for options in ({"run_setup": False}, {"base_id": first.base_id}):
        assert "made\n" not in await says(services, await make(services, tmp_path, **options), "ls")
    git = Project(ProjectKind.GIT, str(tmp_path))
    await asyncio.to_thread(make_repository, tmp_path)
    assert not (await services.spaces.create(LOCAL, SpaceRequest(git))).setup
    settings = {"project_roots": [str(tmp_path)]}
    async with opened(services.settings.data / "other", **settings) as other:
        theirs = await other.spaces.create(TENANT, request(tmp_path, labels={"team": "blue"}))
        assert not theirs.setup


async def test_a_set_up_that_fails_leaves_nothing(
    services: Services, data: Path, tmp_path: Path
) -> None:
    file = tmp_path / ".devcontainer.json"
    file.write_text('{"image": "x", "postCreateCommand": "echo one; echo two >&2; exit 3"}')
    with pytest.raises(SetupFailed, match=r"(?s)echo one.*ended with 3.*one\ntwo") as error:
        await make(services, tmp_path, run_setup=True)
    assert "--network open" in error.value.hint
    file.write_text('{"image": "x", "postCreateCommand": ["no-such-program"]}')
    with pytest.raises(SetupFailed, match="no-such-program"):
        await make(services, tmp_path, run_setup=True)
    taken = await make(services, name="taken")
    with pytest.raises(NameTaken):
        await make(services, tmp_path, run_setup=True, name="taken")
    await services.spaces.remove(LOCAL, taken.space_id)
    with pytest.raises(SpaceInvalid, match="bubblewrap"):
        await make(services, tmp_path, run_setup=True, runtime="landlock")
    file.unlink()
    with pytest.raises(SpaceInvalid, match="how it is set up"):
        await make(services, tmp_path, run_setup=True)
    assert services.journal.all() == [] and leftovers(data / "data") == []
    assert not (data / "data" / "setups").exists()


SLOW = '{"image": "x", "postCreateCommand": "mkfifo pipe; read go < pipe; rm pipe; echo > made"}'


async def setting_up(services: Services) -> Space:
    """The space in which set-up commands run, when the first has begun."""
    async with asyncio.timeout(RUN_S):
        while True:
            found = [one for one in services.journal.all() if one.setting_up]
            if found and found[0].state is SpaceState.RUNNING:
                return found[0]
            await asyncio.sleep(0.01)


async def test_nobody_works_where_a_project_is_set_up(
    services: Services, data: Path, tmp_path: Path
) -> None:
    """What is there, others begin with: neither a token, nor the owner, nor what runs in it."""
    (tmp_path / ".devcontainer.json").write_text(SLOW)
    labels = {"team": "blue"}
    making = asyncio.create_task(make(services, tmp_path, run_setup=True, labels=labels))
    space = await setting_up(services)
    own, spaces, runs = space.space_id, services.spaces, services.operations.runs
    assert (await spaces.list(TENANT, SpaceQuery())).total == 0 and not space.labels
    with pytest.raises(SpaceNotFound):
        await spaces.get(TENANT, own)
    body = RunBody(argv=("touch", "evil"))
    (run_id,) = (one.id for one in (await runs.list(LOCAL, own, RunListQuery())).runs)
    server = InstanceRequest(Server("small", ("true",)), space_id=own)
    for caller in (LOCAL, Caller("tk_2", Scope(ScopeKind.SPACE, own))):
        for door in (
            runs.begin(caller, own, body),
            runs.signal(caller, run_id, SignalBody(signal="KILL")),
            spaces.update(caller, own, SpaceChanges(labels=labels)),
            spaces.stop(caller, own),
            spaces.restart(caller, own),
            spaces.start(caller, own),
            spaces.verify(caller, own),
            services.files.use(caller, own, id, writes=True),
            services.files.unpack(caller, own, BytesIO(), "."),
            services.turns.start(caller, own, TurnRequest("scripted", "x")),
            services.instances.start(caller, server),
            family_of(services).spawn(own, Child()),
        ):
            with pytest.raises(StateConflict, match="set up"):
                await door
    await services.runs.start(
        own, Command(("sh", "-c", "until [ -p pipe ]; do :; done; echo > pipe"))
    )
    made = await making
    assert made.labels == labels and not made.setting_up
    later = await make(services, tmp_path, run_setup=True)
    assert later.base_id == made.base_id
    assert await says(services, later, "ls") == "made\n"


async def test_a_set_up_can_be_given_up(services: Services, data: Path, tmp_path: Path) -> None:
    (tmp_path / ".devcontainer.json").write_text(SLOW)
    making = asyncio.create_task(make(services, tmp_path, run_setup=True))
    space = await setting_up(services)
    await services.spaces.remove(LOCAL, space.space_id, force=True)
    with pytest.raises(SetupFailed):
        await making
    assert services.journal.all() == [] and leftovers(data / "data") == []


async def test_what_has_ended_stays_so_until_it_is_kept(services: Services, tmp_path: Path) -> None:
    space = await make(services, tmp_path)
    async with services.spaces.at_rest(space.space_id) as rested:
        assert rested.state is SpaceState.STOPPED
        starting = asyncio.create_task(services.spaces.start(LOCAL, space.space_id))
        done, _ = await asyncio.wait({starting}, timeout=0.1)
        assert not done
    assert (await starting).state is SpaceState.READY


def test_as_an_ordinary_user(ordinary_user: Account, data: Path) -> None:
    words = (
        "set_them_up",
        "apt_fetches",
        *beyond("once_for_all", "says_that", "uv_finds", "cargo_obeys"),
    )
    run_again(__file__, ordinary_user, data, "-k", " or ".join(words), env=readable_rust(data))
