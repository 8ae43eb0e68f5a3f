"""Settings: parsed once, at the program's entry, then passed on and never changed."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

import msgspec

from carrel.domain.errors import CarrelError

SYSTEM_DATA = Path("/var/lib/carrel")


class SettingsInvalid(CarrelError):
    code = "settings_invalid"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    data: Path
    """Where bases, trees, homes and records are kept. Absolute. Wants to be on a local
    disk: copies are instant only within one file system."""


def parse_settings(values: Mapping[str, object]) -> Settings:
    """Raises `SettingsInvalid` for an unknown key, a missing one or a wrong value."""
    try:
        settings = msgspec.convert(dict(values), Settings, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise SettingsInvalid(
            f"The settings cannot be used: {error}.",
            hint="The known keys are: " + ", ".join(Settings.__struct_fields__) + ".",
        ) from error
    if not settings.data.is_absolute():
        raise SettingsInvalid(
            f"The data folder must be an absolute path, not {str(settings.data)!r}.",
            hint="Write it from the root, such as /srv/carrel.",
        )
    return settings


def load_settings(env: Mapping[str, str] | None = None) -> Settings:
    """The settings of this process: from its environment, else the usual places."""
    env = os.environ if env is None else env
    return parse_settings({"data": env.get("CARREL_DATA") or default_data(env)})


def default_data(env: Mapping[str, str]) -> Path:
    """The machine's folder for root, the person's own for everybody else."""
    if os.geteuid() == 0:
        return SYSTEM_DATA
    shared = Path(env.get("XDG_DATA_HOME", ""))
    # The XDG specification has relative paths ignored.
    return (shared if shared.is_absolute() else _home(env) / ".local" / "share") / "carrel"


def _home(env: Mapping[str, str]) -> Path:
    if home := env.get("HOME"):
        return Path(home)
    try:
        return Path(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError as error:
        raise SettingsInvalid(
            "There is no data folder: this user has no home.",
            hint="Set CARREL_DATA to a folder that it may write.",
        ) from error


def _decode(kind: type, value: object) -> object:
    if kind is not Path or not isinstance(value, str | Path) or "\0" in str(value):
        raise ValueError(f"{value!r} is not a path")
    return Path(value)
