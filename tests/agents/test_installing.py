"""Installing with the real npm: from archives on this machine, and without a network."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from carrel.agents import programs
from carrel.agents.programs import PACKAGES, Locator, Package, install
from carrel.domain.errors import FrontendNotInstalled, UnsupportedFrontend
from tests.agents.programs import PINNED


def archive(folder: Path, version: str, program: str = "tool") -> str:
    """A package with one program and an install script, as npm is given it."""
    manifest = {
        "name": "tool",
        "version": version,
        "bin": {program: "tool.js"},
        "scripts": {"postinstall": "node -e \"require('fs').writeFileSync('made', 'x')\""},
    }
    files = {
        "package.json": json.dumps(manifest),
        "tool.js": f"#!/usr/bin/env node\nconsole.log('tool {version}')\n",
    }
    path = folder / f"tool-{version}.tgz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size, entry.mode = len(text), 0o755
            tar.addfile(entry, io.BytesIO(text.encode()))
    return f"file:{path}"


@pytest.fixture(autouse=True)
def _no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens there; and npm keeps its things here."""
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9/")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))


def test_a_program_is_installed_and_found_and_replaced_by_a_new_pin(tmp_path: Path) -> None:
    own = tmp_path / "own"
    first = {"front": Package("tool", (archive(tmp_path, "1.0.0"),))}
    folder = install("front", own, first)
    assert folder == own / "front"
    assert (folder / "node_modules" / "tool" / "made").exists()
    assert folder.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in own.iterdir()] == ["front"]
    locator = Locator(own)
    assert locator.version(locator.require("front", "tool")) == "1.0.0"
    # Again is at once.
    inode = folder.stat().st_ino
    assert install("front", own, first).stat().st_ino == inode
    # What was there stays when the new one fails.
    with pytest.raises(FrontendNotInstalled):
        install("front", own, {"front": Package("tool", ("tool@2.0.0",))})
    assert Locator(own).version(Locator(own).require("front", "tool")) == "1.0.0"
    install("front", own, {"front": Package("tool", (archive(tmp_path, "1.1.0"),))})
    assert Locator(own).version(Locator(own).require("front", "tool")) == "1.1.0"
    assert [path.name for path in own.iterdir()] == ["front"]


def test_without_a_network_nothing_is_left(tmp_path: Path) -> None:
    own = tmp_path / "own"
    with pytest.raises(FrontendNotInstalled) as caught:
        install("claude-code", own)
    assert "ECONNREFUSED" in str(caught.value.details["output"])
    assert "npm install -g @anthropic-ai/claude-code@" in caught.value.hint
    assert list(own.iterdir()) == []


def test_a_package_without_the_program(tmp_path: Path) -> None:
    packages = {"front": Package("tool", (archive(tmp_path, "1.0.0", "other"),))}
    with pytest.raises(FrontendNotInstalled, match="no program `tool`"):
        install("front", tmp_path / "own", packages)


def test_an_install_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "INSTALL_SECONDS", 0.01)
    packages = {"front": Package("tool", (archive(tmp_path, "1.0.0"),))}
    with pytest.raises(FrontendNotInstalled, match="took too long"):
        install("front", tmp_path / "own", packages)


def test_without_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FrontendNotInstalled) as caught:
        install("codex-cli", tmp_path / "own")
    assert "npm" in caught.value.hint


def test_what_nobody_can_install(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFrontend, match="nothing-like-it"):
        install("nothing-like-it", tmp_path / "own")


def test_the_pins_are_those_that_the_tests_run() -> None:
    manifest = json.loads((PINNED / "package.json").read_text())
    pins = {**manifest["dependencies"], **manifest["optionalDependencies"]}
    wanted = {one for package in PACKAGES.values() for one in package.wanted}
    assert wanted <= {f"{name}@{version}" for name, version in pins.items()}
