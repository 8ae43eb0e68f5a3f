"""Homes with toolchains in them, made of scripts and a copied Python."""

from __future__ import annotations

import os
import pwd
import shutil
import sys
from pathlib import Path

import pytest

PYTHON = "/usr/bin/python3"


def tool(path: Path, says: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {says}\n")
    path.chmod(0o755)
    return path


def secret(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("secret-of-the-owner\n")
    return path


def fill(home: Path) -> None:
    """As pyenv, nvm, rustup and pipx leave a home, with what must stay in it."""
    pyenv, nvm, cargo = home / ".pyenv", home / ".nvm", home / ".cargo"
    tool(pyenv / "shims" / "pytool", "of-pyenv")
    tool(pyenv / "bin" / "pyenv", "pyenv")
    python = pyenv / "versions" / "3.99.0" / "bin" / "python3.99"
    python.parent.mkdir(parents=True)
    shutil.copy(PYTHON, python)
    for version in ("v9.0.0", "v20.1.0"):
        tool(nvm / "versions" / "node" / version / "bin" / "nodetool", f"of-node-{version}")
    tool(cargo / "bin" / "cargotool", "of-cargo")
    tool(home / ".rustup" / "toolchains" / "stable" / "bin" / "rustc", "rustc")
    venv = tool(home / ".local" / "share" / "pipx" / "venvs" / "x" / "bin" / "piped", "of-pipx")
    (home / ".local" / "bin").mkdir()
    (home / ".local" / "bin" / "piped").symlink_to(venv)
    for name in (".cargo/credentials.toml", ".ssh/id", ".npmrc", ".config/gh/hosts", "notes"):
        secret(home / name)
    for folder in [home / ".local", *home.rglob("*")]:
        if folder.is_dir():
            folder.chmod(0o755)


EVERYDAY = {
    "pytool": ".pyenv/shims",
    "uvtool": ".local/share/uv/tools/uvtool/bin",
    "uvpython": ".local/share/uv/python/cpython-3.99/bin",
    "nvmtool": ".nvm/versions/node/v30.0.0/bin",
    "fnmtool": ".local/share/fnm/node-versions/v22.1.0/installation/bin",
    "voltatool": ".volta/bin",
    "cargotool": ".cargo/bin",
    "rusttool": ".rustup/toolchains/stable/bin",
    "javatool": ".sdkman/candidates/java/21.0.1/bin",
    "gotool": ".local/go/bin",
    "gopathtool": "go/bin",
    "localtool": ".local/bin",
    "brewtool": ".linuxbrew/Cellar/brewed/1.0/bin",
}
"""A program of each toolchain that many people have, and where that puts it."""
LINKED = {
    ".local/bin/uvtool": "../share/uv/tools/uvtool/bin/uvtool",
    ".local/bin/uvpython": "../share/uv/python/cpython-3.99/bin/uvpython",
    ".sdkman/candidates/java/current": "21.0.1",
    ".linuxbrew/bin/brewtool": "../Cellar/brewed/1.0/bin/brewtool",
    ".cargo/bin/rusttool": "../../.rustup/toolchains/stable/bin/rusttool",
}
VARIABLES = {
    "PYENV_ROOT": ".pyenv",
    "UV_PYTHON_INSTALL_DIR": ".local/share/uv/python",
    "NVM_DIR": ".nvm",
    "FNM_DIR": ".local/share/fnm",
    "VOLTA_HOME": ".volta",
    "RUSTUP_HOME": ".rustup",
    "JAVA_HOME": ".sdkman/candidates/java/current",
    "HOMEBREW_PREFIX": ".linuxbrew",
}


def fill_with_everything(home: Path) -> None:
    for name, place in EVERYDAY.items():
        tool(home / place / name, f"{name}-runs")
    tool(home / ".linuxbrew" / "bin" / "brew", "brew")
    tool(home / ".pyenv" / "bin" / "pyenv", "pyenv")
    (home / ".local" / "go" / "VERSION").write_text("go1.99")
    for link, target in LINKED.items():
        (home / link).parent.mkdir(parents=True, exist_ok=True)
        (home / link).symlink_to(target)
    for below in home.rglob("*"):
        if below.is_dir() and not below.is_symlink():
            below.chmod(0o755)


def real_uv(home: Path) -> None:
    """Where uv's own installer puts it."""
    programs = home / ".local" / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(sys.executable).with_name("uv"), programs)


RUSTUP = "CARREL_TEST_RUSTUP"
"""Where tests that run as another user find one that they can read."""


def _own_rustup() -> Path:
    try:
        return Path(pwd.getpwuid(os.geteuid()).pw_dir, ".rustup")
    except KeyError:
        return Path("/nonexistent")


def real_rust(home: Path) -> None:
    """The toolchain of whoever runs the tests, as rustup has it in a home. Skips without one."""
    folder = Path(os.environ.get(RUSTUP) or _own_rustup())
    found = sorted(folder.glob("toolchains/stable*/bin"))
    if not found:
        pytest.skip("no Rust of rustup in this home")
    (home / ".rustup").symlink_to(folder)
    programs = home / ".cargo" / "bin"
    programs.mkdir(parents=True)
    for name in ("cargo", "rustc"):
        (programs / name).symlink_to(home / ".rustup" / found[0].relative_to(folder) / name)


def readable_rust(folder: Path) -> dict[str, str]:
    """For the environment of another user's tests: root's own, where they can read it."""
    for toolchain in _own_rustup().glob("toolchains/stable*"):
        for part in ("bin", "lib"):
            target = folder / "rustup" / "toolchains" / toolchain.name / part
            shutil.copytree(toolchain / part, target, symlinks=True, copy_function=os.link)
    return {RUSTUP: str(folder / "rustup")}
