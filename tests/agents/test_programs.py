"""Where programs are found, and what a sandbox must show of them."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from carrel.agents import programs
from carrel.agents.programs import Locator
from carrel.domain.errors import FrontendNotInstalled


def program(path: Path, text: str = "#!/bin/sh\necho tool 1.2.3\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def installed(own: Path, frontend: str, name: str, text: str) -> Path:
    """As npm leaves it: a link in `.bin` to the file of a package."""
    modules = own / frontend / "node_modules"
    file = program(modules / name / "bin" / name, text)
    links = modules / ".bin"
    links.mkdir(exist_ok=True)
    (links / name).symlink_to(os.path.relpath(file, links))
    return file


def test_its_own_folder_comes_before_path(tmp_path: Path) -> None:
    elsewhere = program(tmp_path / "bin" / "tool")
    locator = Locator(tmp_path / "own", search=str(tmp_path / "bin"))
    found = locator.find("front", "tool")
    assert found is not None
    assert found.argv == (str(elsewhere),)
    own = installed(tmp_path / "own", "front", "tool", "#!/bin/sh\n")
    found = locator.find("front", "tool")
    assert found is not None
    assert found.path == own
    assert found.binds() == (str(tmp_path / "own" / "front" / "node_modules"),)


def test_what_a_person_has_on_path(tmp_path: Path) -> None:
    """Only where nobody else can put another program, and for the agent that it was found for."""
    theirs, open_to_all = tmp_path / "theirs", tmp_path / "open"
    mine = program(tmp_path / "mine" / "tool")
    locator = Locator(tmp_path / "own", search="")
    path = f"relative::{open_to_all}:{theirs}:{tmp_path}/none:{mine.parent}"
    (open_to_all / "bin").mkdir(parents=True)
    program(open_to_all / "tool").parent.chmod(0o777)
    (theirs / "bin").mkdir(parents=True)
    writable = program(theirs / "bin" / "tool")
    writable.chmod(0o757)
    (theirs / "tool").symlink_to(writable)
    found = locator.on_path(path).find("front", "tool")
    assert found is not None and found.path == mine
    assert locator.on_path(str(theirs)).find("front", "tool") is None
    assert locator.find("front", "tool") is None
    locator.remember("front", path)
    for one in (locator, locator.unasked(), Locator(tmp_path / "own", search="")):
        found = one.find("front", "tool")
        assert found is not None and found.path == mine
        assert one.find("other", "tool") is None
    mine.chmod(0o777)
    assert locator.find("front", "tool") is None
    assert not programs.is_owners(str(tmp_path / "none"))
    if os.geteuid() == 0:
        mine.chmod(0o755)
        os.chown(mine, 1234, 1234)
        assert locator.find("front", "tool") is None


def test_where_the_login_shell_finds_it_comes_last(tmp_path: Path) -> None:
    """With the Node that a version manager has beside it, not the one that comes first."""
    node = tmp_path / "nvm" / "v22"
    script = program(node / "lib" / "node_modules" / "tool" / "cli.js", "#!/usr/bin/env node\n")
    beside = program(node / "bin" / "node")
    (node / "bin" / "tool").symlink_to(script)
    program(tmp_path / "bin" / "node")
    places = [""]
    locator = Locator(tmp_path / "own", str(tmp_path / "bin"), lambda: places[0])
    assert locator.find("front", "tool") is None
    places[0] = f"{tmp_path}/bin:{node}/bin"
    for one in (locator, locator.unasked()):
        found = one.find("front", "tool")
        assert found is not None and found.argv == (str(beside), str(script))
        assert found.binds() == (str(beside), str(node / "lib" / "node_modules"))
    nearer = program(tmp_path / "bin" / "tool")
    found = locator.find("front", "tool")
    assert found is not None and found.argv == (str(nearer),)


def test_a_script_is_given_to_its_node(tmp_path: Path) -> None:
    own = tmp_path / "own"
    script = installed(own, "front", "tool", "#!/usr/bin/env node\n")
    node = program(tmp_path / "elsewhere" / "node")
    found = Locator(own, search=str(tmp_path / "elsewhere")).find("front", "tool")
    assert found is not None
    assert found.argv == (str(node), str(script))
    assert found.binds() == (str(node), str(own / "front" / "node_modules"))
    nearer = installed(own, "front", "node", "#!/bin/sh\n")
    found = Locator(own, search=str(tmp_path / "elsewhere")).find("front", "tool")
    assert found is not None
    assert found.argv == (str(nearer), str(script))
    assert found.binds() == (str(own / "front" / "node_modules"),)


def test_a_script_without_its_node_is_not_there(tmp_path: Path) -> None:
    installed(tmp_path, "front", "tool", "#!/usr/bin/env node\n")
    locator = Locator(tmp_path, search="")
    assert locator.find("front", "tool") is None
    with pytest.raises(FrontendNotInstalled) as caught:
        locator.require("front", "tool")
    assert caught.value.hint == "Run: carrel agents install front"


def test_a_file_alone_is_shown_alone(tmp_path: Path) -> None:
    file = program(tmp_path / "versions" / "2.0")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tool").symlink_to(file)
    found = Locator(tmp_path / "own", search=str(tmp_path / "bin")).find("front", "tool")
    assert found is not None
    assert found.binds() == (str(file),)


def test_what_every_sandbox_shows_needs_no_bind(tmp_path: Path) -> None:
    found = Locator(tmp_path, search="/usr/bin").find("front", "env")
    assert found is not None
    assert found.binds() == ()


def test_the_version_is_asked_once_for_a_file(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    text = f"#!/bin/sh\necho x >> {asked}\necho tool {{}} '(Beta)'\n"
    file = program(tmp_path / "bin" / "tool", text.format("1.2.3"))
    locator = Locator(tmp_path / "own", search=str(tmp_path / "bin"))
    assert locator.version(locator.require("front", "tool")) == "1.2.3"
    assert locator.version(locator.require("front", "tool")) == "1.2.3"
    assert asked.read_text() == "x\n"
    file.write_text(text.format("1.3.0-rc.1"))
    os.utime(file, ns=(1, 1))
    assert locator.version(locator.require("front", "tool")) == "1.3.0-rc.1"


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\necho hello\n", "#!/nowhere\n"])
def test_a_program_that_does_not_say_its_version(tmp_path: Path, text: str) -> None:
    program(tmp_path / "bin" / "tool", text)
    locator = Locator(tmp_path / "own", search=str(tmp_path / "bin"))
    assert locator.version(locator.require("front", "tool")) == ""


def test_a_program_that_hangs_is_ended_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "VERSION_SECONDS", 0.5)
    held = tmp_path / "held"
    # Whoever has descriptor 9 holds the lock, and both have it.
    program(tmp_path / "bin" / "tool", f"#!/bin/sh\nexec 9>{held}\nflock 9\nsleep 600 &\nwait\n")
    locator = Locator(tmp_path / "own", search=str(tmp_path / "bin"))
    assert locator.version(locator.require("front", "tool")) == ""
    with held.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
