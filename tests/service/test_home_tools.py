"""Spaces that see the toolchains in the home of the daemon's user, and nothing else of it."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.errors import CommandNotFound, Forbidden, SpaceInvalid
from carrel.domain.runtimes import Command
from carrel.domain.spaces import Space
from carrel.environments import tool_secrets
from carrel.service.family import Child
from tests.accounts import Account
from tests.environments.homes import (
    EVERYDAY,
    VARIABLES,
    fill,
    fill_with_everything,
    secret,
    tool,
)
from tests.sampling import beyond
from tests.service.rig import family_of, make, opened, request, run
from tests.trees.again import run_again

TENANT = Caller("tk_1", Scope(ScopeKind.LABEL, "team=blue"))
ALL = "nodetool; pytool; cargotool; piped"
KNOCK = """
import contextlib, os, socket, stat, sys
for folder in sys.argv[1:]:
    os.chdir(folder)
    with contextlib.suppress(OSError):
        socket.socket(socket.AF_UNIX).connect("socket")
        print("reached a socket")
    with contextlib.suppress(OSError):
        pipe = os.open("pipe", os.O_WRONLY | os.O_NONBLOCK)
        print("reached a pipe")
"""
WITHOUT_ROOT = " or ".join(
    (
        *("tools_run", "next_start", "who_sees", "landlock_reads"),
        *beyond("recorded", "many_people", "virtual", "listens"),
    )
)


@pytest.fixture
def home(data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Closed to others, as many homes are. Its login shell prefers an older Node."""
    folder = data / "ada"
    folder.mkdir(mode=0o700)
    fill(folder)
    node = f"{folder}/.nvm/versions/node/v9.0.0/bin"
    (folder / ".profile").write_text(f"PATH={node}:{folder}/.pyenv/shims:$PATH\n")
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.fixture
async def services(data: Path, home: Path) -> AsyncIterator[Services]:
    async with opened(data / "data") as services:
        yield services


async def says(services: Services, space: Space, script: str) -> str:
    return (await run(services, space, script))[1]


async def test_tools_run_and_nothing_else_of_the_home_is_there(
    services: Services, home: Path, data: Path, tmp_path: Path
) -> None:
    (home / ".nvm" / "to-shadow").symlink_to("/etc/shadow")
    (home / ".nvm" / "to-keys").symlink_to(home / ".ssh")
    (home / ".nvm" / "to-data").symlink_to(data / "data")
    space = await make(services, tmp_path)
    node = "of-node-v9.0.0" if os.geteuid() == 0 else "of-node-v20.1.0"
    assert (await says(services, space, ALL)).split() == [node, "of-pyenv", "of-cargo", "of-pipx"]
    there = await says(services, space, f"cd {home}; find . -maxdepth 2 | sort")
    allowed = {".cargo", ".local", ".nvm", ".pyenv", ".rustup", "."}
    assert {line.removeprefix("./").split("/")[0] for line in there.split()} == allowed
    assert await says(services, space, f"ls {home}/.cargo {home}/.local/share/pipx") == (
        f"{home}/.cargo:\nbin\n\n{home}/.local/share/pipx:\nvenvs\n"
    )
    leaks = await says(
        services, space, f"grep -rs secret-of-the-owner {home}; cat {home}/.nvm/to-*/* 2>&1"
    )
    assert "secret-of-the-owner" not in leaks
    for link in ("to-shadow", "to-keys", "to-data"):
        assert await says(services, space, f"test -e {home}/.nvm/{link} || echo none") == "none\n"
    written = await says(services, space, f"echo x > {home}/.pyenv/x")
    assert "Read-only" in written and "x" not in os.listdir(home / ".pyenv")
    env = await says(services, space, 'echo "$PYENV_ROOT $RUSTUP_HOME $CARGO_HOME $HOME"')
    assert env.split()[:2] == [f"{home}/.pyenv", f"{home}/.rustup"] and str(home) not in env.split()
    proof = await services.spaces.verify(LOCAL, space.space_id)
    assert proof.holds, [one for one in proof.attempts if not one.refused]


async def test_every_toolchain_that_many_people_have(
    services: Services, home: Path, tmp_path: Path
) -> None:
    """Each runs, with its variables, at its own path; none can be written."""
    for part in home.iterdir():
        (shutil.rmtree if part.is_dir() else os.unlink)(part)
    fill_with_everything(home)
    space = await make(services, tmp_path)
    names = {one.name for one in space.tools.tools}
    expected = "pyenv uv uv-tools nvm fnm volta cargo rustup sdkman go go-bin local homebrew"
    assert names == set(expected.split())
    said = await says(services, space, ";".join(EVERYDAY))
    assert said.split() == [f"{name}-runs" for name in EVERYDAY]
    shown = await says(services, space, "env")
    for name, place in VARIABLES.items():
        assert f"\n{name}={home / place}\n" in f"\n{shown}", name
    for name, folder in EVERYDAY.items():
        refused = await says(services, space, f"echo x 2>&1 >> {home / folder / name}")
        assert "cannot create" in refused, name


async def test_a_virtual_environment_with_a_python_of_the_home(
    services: Services, home: Path, tmp_path: Path
) -> None:
    """It names the project and the home by their own paths."""
    python = home / ".pyenv" / "versions" / "3.99.0" / "bin" / "python3.99"
    subprocess.run([python, "-m", "venv", "--without-pip", tmp_path / ".venv"], check=True)
    script = tmp_path / ".venv" / "bin" / "hello"
    script.write_text(f"#!{tmp_path}/.venv/bin/python\nimport sys; print(sys.base_prefix, 'hi')\n")
    script.chmod(0o755)
    space = await make(services, tmp_path)
    assert (await says(services, space, ".venv/bin/hello")).endswith(" hi\n")
    assert (await says(services, space, f"{script}")).endswith(" hi\n")
    plain = await make(services, tmp_path, home_tools=False)
    with pytest.raises(CommandNotFound, match="is a script for") as error:
        await services.runs.start(plain.space_id, Command((".venv/bin/hello",)))
    assert f"{tmp_path}/.venv/bin/python" in error.value.message


async def test_who_sees_them(services: Services, home: Path, data: Path, tmp_path: Path) -> None:
    """The owner's spaces; their children as they do; a tenant's never, nor the tenant's wish."""
    missing = f"command -v cargotool pytool || ls {home} 2>&1 | wc -l; env | grep -c PYENV"
    plain = await make(services, tmp_path, home_tools=False)
    assert await says(services, plain, missing) == "1\n0\n"
    theirs = await services.spaces.create(TENANT, request(labels={"team": "blue"}))
    assert await says(services, theirs, missing) == "1\n0\n" and not theirs.tools.tools
    with pytest.raises(Forbidden):
        await services.spaces.create(TENANT, request(show=(str(home / ".nvm"),)))
    (home / "shown").mkdir(mode=0o755)
    (home / "shown" / "file").write_text("seen\n")
    parent = await make(services, tmp_path, show=(str(home / "shown"),))
    tool(home / ".deno" / "bin" / "deno", "of-deno")
    later = await make(services, tmp_path)
    assert await says(services, later, "deno") == "of-deno\n"
    for space, sees in ((parent, True), (plain, False), (theirs, False)):
        child = await family_of(services).spawn(space.space_id, Child())
        assert (child.tools, child.shown) == (space.tools, space.shown)
        got = await says(services, child, f"cat {home}/shown/file; cargotool; deno")
        assert ("seen" in got, "of-cargo" in got) == (sees, sees) and "of-deno" not in got


@pytest.mark.parametrize("runtime", ["bubblewrap", "landlock"])
async def test_settings_that_come_later_are_hidden_at_the_next_start(
    services: Services, home: Path, tmp_path: Path, runtime: str
) -> None:
    # In landlock, the space's user walks there by itself.
    home.chmod(0o711)
    space = await make(services, tmp_path, runtime=runtime)
    node = home / ".nvm" / "versions" / "node" / "v20.1.0"
    (node / "etc").mkdir(mode=0o755)
    token = secret(node / "etc" / "npmrc")
    secret(home / ".nvm" / ".git" / "config")
    # As root, nobody else gets there: it needs no mask, and can have none.
    secret(home / ".nvm" / "private" / ".npmrc").parent.chmod(0o700)
    (node / "bin" / "current").symlink_to("nodetool")
    # So many that all of the folder is hidden.
    for number in range(tool_secrets.MOST_IN_FOLDER + 1):
        (home / ".cargo" / "bin" / f"{number}").write_text("https://ada:password@example.com\n")
    script = f"cat {token} {home}/.nvm/.git/config {home}/.nvm/private/.npmrc; {node}/bin/current"
    script = f"cat {home}/.cargo/bin/*; {script}"
    for later in (await make(services, tmp_path, runtime=runtime), space):
        assert await says(services, later, f"({script}) 2>/dev/null") == "of-node-v20.1.0\n"
        await services.spaces.restart(LOCAL, space.space_id)
    await services.spaces.verify(LOCAL, space.space_id)


async def test_nobody_listens_in_what_is_shown(
    services: Services, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is mounted read-only, which keeps nobody from a socket or from a pipe."""
    shown, many, tools = home / "shown", home / "many", home / ".pyenv" / "versions"
    for folder in (shown, many):
        folder.mkdir(mode=0o755)
        (folder / "file").write_text("seen\n")
    by_name = (str(shown), str(many))
    parent = await make(services, tmp_path, show=by_name)
    with ExitStack() as ends:
        for folder in (shown, tools):
            listener = ends.enter_context(socket.socket(socket.AF_UNIX))
            monkeypatch.chdir(folder)
            listener.bind("socket")
            listener.listen()
            os.mkfifo("pipe")
            ends.callback(os.close, os.open("pipe", os.O_RDWR))
            os.chmod("socket", 0o777)
            os.chmod("pipe", 0o777)
        for number in range(tool_secrets.MOST_IN_FOLDER + 1):
            os.mkfifo(many / str(number))
        # Whom the tool on the host keeps waiting could keep the tool waiting, too.
        lock = ends.enter_context(open(tools / ".lock", "w"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        knock = f"python3 -c {shlex.quote(KNOCK)} {shown} {tools}; cat {shown}/file; ls -A {many}"
        knock += f"; flock -n {tools}/.lock true || echo waits"
        assert "reached" in await says(services, parent, knock)
        for space in (
            await make(services, tmp_path, show=by_name[:1]),
            await family_of(services).spawn(parent.space_id, Child()),
            await services.spaces.restart(LOCAL, parent.space_id),
        ):
            assert await says(services, space, f"({knock}) 2>/dev/null") == "seen\n"


async def test_they_are_recorded_with_the_space(home: Path, data: Path, tmp_path: Path) -> None:
    shown = home / "extra"
    shown.mkdir(mode=0o755)
    (shown / "file").write_text("seen\n")
    sandbox = {"show": [str(shown), f"{home}/.ssh", "/no"]}
    async with opened(data / "data", sandbox=sandbox) as services:
        space = await make(services, tmp_path)
        assert set(space.shown) == {str(shown)}
    (home / ".profile").unlink()
    # What was shown is a link by now, and no longer shown; all else is as it was.
    os.rename(home / ".cargo" / "bin", home / ".cargo" / "moved")
    (home / ".cargo" / "bin").symlink_to(home / ".ssh")
    async with opened(data / "data", sandbox={"home_tools": False}) as services:
        again = services.journal.current(space.space_id)
        assert (again.tools, again.shown) == (space.tools, space.shown)
        await services.spaces.stop(LOCAL, space.space_id)
        await services.spaces.start(LOCAL, space.space_id)
        script = f"pytool; cat {shown}/file; ls -A {home}/.cargo/bin"
        got = await says(services, again, script)
        assert got == "of-pyenv\nseen\n"
        assert not (await make(services, tmp_path)).tools.tools


async def test_a_project_among_the_tools_is_shown_as_a_copy(services: Services, home: Path) -> None:
    project = home / ".pyenv" / "plugins" / "mine"
    project.mkdir(parents=True)
    (project / "file").write_text("of the checkout")
    space = await make(services, project)
    assert "pyenv" not in [one.name for one in space.tools.tools]
    await says(services, space, f"echo changed > {project}/file; pytool")
    assert await says(services, space, f"cat {project}/file; ls {home}/.pyenv") == (
        "changed\nplugins\n"
    )
    assert not [entry for entry in space.tools.path_first if ".pyenv" in entry]
    with pytest.raises(SpaceInvalid, match="contains the project"):
        await make(services, project, show=(str(project.parent),))
    # The whole home as a project has its tools in the tree.
    whole = await make(services, home / ".nvm")
    assert "nodetool" in await says(services, whole, "find . -name nodetool")


async def test_landlock_reads_them_too(services: Services, home: Path, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        # The space's user walks there by itself.
        home.chmod(0o711)
    (home / "shown").mkdir(mode=0o755)
    os.mkfifo(home / "shown" / "pipe")
    shown = (str(home / "shown"),)
    space = await make(services, tmp_path, runtime="landlock", show=shown)
    # The folder is not closed for it.
    got = await says(services, space, f"ls {shown[0]}; echo x > {shown[0]}/pipe")
    assert got.startswith("pipe\n") and "denied" in got
    assert "of-cargo\n" in await says(services, space, ALL)
    got = await says(services, space, f"cat {home}/.ssh/id {home}/notes; echo x > {home}/.pyenv/x")
    assert "secret-of-the-owner" not in got and not (home / ".pyenv" / "x").exists()


def test_as_an_ordinary_user(ordinary_user: Account, data: Path) -> None:
    run_again(__file__, ordinary_user, data, "-k", WITHOUT_ROOT)
