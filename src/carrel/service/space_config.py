"""`config.yaml` in the folder of each space, for people: what was asked for, and what came of it;
and `containers/`, with what its project's files were understood to ask for.

The record in the database is what holds. These files are written whenever that part of it changes,
and nothing reads them. What looks like a key is left out, as it is in every answer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from carrel.domain.keys import HIDDEN, keys_in, masked
from carrel.domain.spaces import Space, SpaceRequest, SpaceState
from carrel.domain.systems import SpaceEnvironment

NAME = "config.yaml"
CONTAINERS, PLAN = "containers", "plan.yaml"
FIRST = "# Written by Carrel and never read back: `carrel show` tells what holds now.\n"
_BETWEEN = frozenset({SpaceState.CREATING, SpaceState.REMOVING, SpaceState.REMOVED})
_LEFT_OUT = frozenset(
    {
        *("space_id", "place", "transient", "setting_up", "guest", "realm", "account", "family"),
        *("named", "race", "race_begins", "environment", "unwatched"),
    }
)
"""Of a request: what is never a caller's own word."""
_PLAIN = re.compile(r"[A-Za-z][A-Za-z_-]*")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""What YAML does not take for a text."""


def asked_for(request: SpaceRequest) -> dict[str, Any]:
    """What a caller said of a new space, as far as it is not the default anyway."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(SpaceRequest):
        value = getattr(request, field.name)
        if field.name not in _LEFT_OUT and value not in (field.default, {}, ()):
            found[field.name] = _plain(masked(value) if field.name == "env" else value)
    return found


class SpaceConfigs:
    """For any thread."""

    def __init__(self, folder: Path) -> None:
        """`folder` holds a folder for each space."""
        self._folder = folder
        self._lock = threading.Lock()
        self._written: dict[str, dict[str, Any]] = {}

    def is_stale(self, space: Space) -> bool:
        if space.state in _BETWEEN:
            self._written.pop(space.space_id, None)
            return False
        return self._written.get(space.space_id) != _parts(space)

    def write(self, space: Space) -> None:
        """Blocking. A disk that is full keeps no space from anything."""
        folder = self._folder / space.space_id
        with self._lock, contextlib.suppress(OSError):
            self._written[space.space_id] = _parts(space)
            new = folder / f".{NAME}.new"
            text = FIRST + "".join(f"{line}\n" for line in _lines(_told(space)))
            with open(new, "w", opener=_private) as file:
                file.write(text)
            os.replace(new, folder / NAME)


def write_plan(folder: Path, space: Space, found: SpaceEnvironment) -> None:
    """Into `containers/` below the folder of a space, once: the plan as it was vetted, and the text
    of the Dockerfile. Blocking. A disk that is full keeps no space from anything."""
    plan, place = found.plan, folder / CONTAINERS
    if plan is None or space.image is None:
        return
    told = {
        "decided": plan.why,
        "file": plan.path,
        "image": plan.image,
        "image_id": space.image.image_id,
        "build": plan.build and {**_plain(plan.build), "args": masked(plan.build.args)},
        "features": {one.reference: dict(one.options) for one in plan.features},
        "user": space.image.user,
        "variables": masked(space.image.variables),
        "commands": [f"{one.step}: {one.text}" for one in found.hooks],
        "ports": [one.number for one in found.ports],
        "mounts": {one.target: one.kind for one in plan.mounts},
        "left_out": {one.what: one.why for one in plan.dropped},
    }
    there = {name: _plain(value) for name, value in told.items() if value}
    with contextlib.suppress(OSError):
        place.mkdir(mode=0o700, exist_ok=True)
        files = {PLAN: FIRST + "".join(f"{line}\n" for line in _lines(there))}
        if found.definition:
            files["Dockerfile"] = found.definition
        for name, text in files.items():
            with open(place / name, "w", encoding="utf-8", opener=_private) as file:
                file.write(text)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _parts(space: Space) -> dict[str, Any]:
    """All of it that a file tells."""
    return {name: getattr(space, name) for name in _FIELDS}


_FIELDS = (
    *("name", "description", "labels", "project", "base_id", "restored_from", "parent", "family"),
    *("runtime", "driver", "place", "network", "tier", "limits", "default_disk_bytes", "enforced"),
    *(
        "agent",
        "wake",
        "ssh_agent",
        "mcp",
        "env",
        "tools",
        "shown",
        "shows",
        "packages",
        "downloads",
        "setup",
    ),
    *("retention", "left_out", "asked"),
)


def _told(space: Space) -> dict[str, Any]:
    resolved = _parts(space)
    asked = resolved.pop("asked")
    packages = space.packages
    resolved |= {
        "env": masked(space.env),
        "enforced": {str(one.kind): one.how for one in space.enforced},
        "tools": {tool.name: list(tool.shown) for tool in space.tools.tools},
        "shown": list(space.shown),
        # Their content may have credentials.
        "packages": [*(f"~/{name}" for name in packages.files), *packages.env],
        "left_out": {one.path: one.why for one in space.left_out},
    }
    made = datetime.fromtimestamp(space.created_at, UTC).isoformat(timespec="seconds")
    told = {name: _plain(value) for name, value in resolved.items()}
    there = {name: value for name, value in told.items() if value not in (None, "", [], {})}
    return {"id": space.space_id, "made": made, "asked": asked, "resolved": there}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
        return {name: _plain(one) for name, one in found.items() if one is not None}
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, str):
        text = str(value)
        for key in keys_in(text):
            text = text.replace(key, HIDDEN)
        return text
    return value


def _lines(value: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """YAML of a mapping: nested by two blanks, texts quoted as in JSON where they need it."""
    for name, one in value.items():
        if isinstance(one, Mapping) and one:
            yield f"{indent}{_scalar(name)}:"
            yield from _lines(one, indent + "  ")
        elif isinstance(one, list) and one:
            yield f"{indent}{_scalar(name)}:"
            yield from (f"{indent}  - {_scalar(item)}" for item in one)
        else:
            yield f"{indent}{_scalar(name)}: {_scalar(one)}"


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value)
