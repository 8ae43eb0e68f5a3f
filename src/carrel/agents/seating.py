"""The folders of an agent in its space, and what its sandbox calls them.

The agent may make anything of its own folder, links to elsewhere too: what is put there goes
by descriptors, one component after the other, and follows nothing.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

from carrel.agents import interpreting
from carrel.domain.agents import Frontends, Seat, SeatRequest
from carrel.domain.errors import ResolveFailed
from carrel.domain.hub import HUB_SOCKET
from carrel.domain.runtimes import Bind
from carrel.domain.trees import Owner

STATE, CONTEXT = "/agent/state", "/agent/context"
WORKSPACE, HUB = "/workspace", "/run/carrel"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Secrets = Callable[[tuple[str, ...]], Mapping[str, str]]
"""Credentials by name; those that there are."""


class SpaceSeats:
    """Implements `carrel.domain.agents.Seats`."""

    def __init__(self, frontends: Frontends, secrets_of: Secrets) -> None:
        self._frontends = frontends
        self._secrets_of = secrets_of

    def make(self, folder: Path, owner: Owner) -> None:
        _make(folder, owner)

    def binds(self, folder: Path, frontend: str) -> tuple[Bind, ...]:
        state, context = _folders(folder)
        # The space's MCP server is ours, whatever the agent is.
        paths = dict.fromkeys((*self._programs(frontend), *interpreting.folders()))
        shown = [Bind(Path(path), path) for path in paths]
        return (Bind(state, STATE, writable=True), Bind(context, CONTEXT), *shown)

    def _programs(self, frontend: str) -> tuple[str, ...]:
        """None of one that is gone or broken: the space can still be looked at and removed,
        and its next turn says what is wrong."""
        try:
            return self._frontends.get(frontend).binds()
        except Exception:
            return ()

    def take(self, place: SeatRequest) -> Seat:
        state, context = _make(place.folder, place.owner)
        inside = place.own_paths
        hub = f"{HUB}/{HUB_SOCKET}" if inside else str(place.folder / "hub" / HUB_SOCKET)
        return Seat(
            workspace=WORKSPACE if inside else str(place.tree),
            state=STATE if inside else str(state),
            context=_shown(context, inside),
            confined=place.confined,
            mcp=interpreting.python("carrel.cli.main", "mcp"),
            mcp_env={"CARREL_HUB": hub},
            credentials=self._secrets_of(place.frontend.credentials),
        )

    def put(self, place: SeatRequest, files: Mapping[str, bytes]) -> None:
        state, _ = _make(place.folder, place.owner)
        root = os.open(state, _FOLDER)
        try:
            for path, data in files.items():
                _put(root, path, data, place.owner)
        except OSError as error:
            raise ResolveFailed(
                f"The agent's own folder cannot be written: {error}.",
                hint=f"Look at {state}.",
            ) from error
        finally:
            os.close(root)


def _shown(context: Path, inside: bool) -> str:
    """Nothing when there is nothing to read in it: agents are told of it."""
    if not any(context.iterdir()):
        return ""
    return CONTEXT if inside else str(context)


def _folders(folder: Path) -> tuple[Path, Path]:
    return folder / "agent" / "state", folder / "agent" / "context"


def _make(folder: Path, owner: Owner) -> tuple[Path, Path]:
    """Idempotent. The state is the agent's, all else is ours."""
    state, context = _folders(folder)
    if state.is_dir():
        return state, context
    state.parent.mkdir(mode=0o711, exist_ok=True)
    context.mkdir(mode=0o755, exist_ok=True)
    state.mkdir(mode=0o700, exist_ok=True)
    _give(os.open(state, _FOLDER), owner)
    return state, context


def _put(root: int, path: str, data: bytes, owner: Owner) -> None:
    """Whole or not at all."""
    *above, name = path.split("/")
    here = os.dup(root)
    try:
        for part in above:
            below = _enter(here, part, owner)
            os.close(here)
            here = below
        draft = f".{secrets.token_hex(8)}"
        descriptor = os.open(draft, _NEW, 0o600, dir_fd=here)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if os.geteuid() == 0:
                os.fchown(descriptor, owner.uid, owner.gid)
        os.rename(draft, name, src_dir_fd=here, dst_dir_fd=here)
    finally:
        os.close(here)


def _enter(above: int, name: str, owner: Owner) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=above)
    except FileNotFoundError:
        os.mkdir(name, 0o700, dir_fd=above)
    made = os.open(name, _FOLDER, dir_fd=above)
    _give(os.dup(made), owner)
    return made


def _give(descriptor: int, owner: Owner) -> None:
    """Closes it."""
    try:
        if os.geteuid() == 0:
            os.fchown(descriptor, owner.uid, owner.gid)
    finally:
        os.close(descriptor)
