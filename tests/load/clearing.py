"""Ending everything of a data folder, in whatever state a failed run left it."""

from __future__ import annotations

import contextlib
from pathlib import Path

from carrel.daemon import control
from carrel.domain.errors import CarrelError
from carrel.domain.ids import dev_id, is_id
from carrel.launcher.client import Launcher
from carrel.runtimes.limits.cgroups import Cgroups


def end_everything(data: Path) -> None:
    """The daemon, all sandboxes (which outlive their launcher), their groups, the launcher."""
    with contextlib.suppress(CarrelError):
        control.stop(data)
    launcher, groups = Launcher(data), Cgroups()
    try:
        for space_id in _found(data):
            handle = groups.load(space_id)
            fields = {
                "sandbox_id": space_id,
                "grace": 0.0,
                "groups": [] if handle is None else list(handle.folders),
                "runs": str(data / "spaces" / space_id / "runs"),
            }
            launcher.call("stop", fields, [])
            if handle is not None:
                groups.remove(handle)
        launcher.shutdown(force=True)
    finally:
        launcher.close()


def _found(data: Path) -> list[str]:
    names = {path.name for path in data.glob("spaces/*")}
    # One that is still being set up is in no note yet.
    names |= {dev_id(name) for name in names if name.startswith("sp_")}
    names |= {path.stem for path in data.glob("launcher/holders/*.json")}
    return sorted(name for name in names if is_id(name))
