"""Homes with toolchains in them, made of scripts and a copied Python."""

from __future__ import annotations

import shutil
from pathlib import Path

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
