"""One setting changed in the settings file.

The other lines of the file and its comments stay: only the lines of that setting are replaced, and
the result is read again, by the one parser of settings, before it is written.
"""

from __future__ import annotations

import contextlib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from carrel.config import (
    SettingsInvalid,
    config_file,
    default_data,
    file_values,
    parse_settings,
    setting_named,
    toml_text,
)


def change_setting(env: Mapping[str, str], key: str, text: str) -> Path:
    """Gives the file. Raises `SettingsInvalid`, and then the file is as it was; `OSError`."""
    path = config_file(env)
    if path is None:
        raise SettingsInvalid(
            "There is no settings file: this user has no home.", hint="Set CARREL_CONFIG."
        )
    about = setting_named(key)
    if about.type == "table":
        raise SettingsInvalid(f"{key} is a table.", hint=f"Write it into {path} by hand.")
    if not _is_text(text):
        raise SettingsInvalid("The value is no text.", hint="Write it in UTF-8.")
    before = file_values(env) if path.exists() else {}
    value = _value_of(about.type, text)
    after = {**before, key: value}
    parse_settings({"data": default_data(env), **after})
    # A link stays one, to the file that is changed.
    path = Path(os.path.realpath(path))
    old = path.read_text() if path.exists() else ""
    new = _with_setting(old, key, f"{key} = {toml_text(value)}")
    if tomllib.loads(new) != after:
        raise SettingsInvalid(
            f"{key} cannot be changed in {path} by this program.", hint="Edit the file by hand."
        )
    _replace(path, new)
    return path


def _value_of(type: str, text: str) -> object:
    """What people write: a text without quotes, a list as TOML has it or with commas."""
    if type in ("text", "path") or type.startswith('"'):
        return text
    if type.startswith("list") and not text.lstrip().startswith("["):
        return [one.strip() for one in text.split(",") if one.strip()]
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, KeyError):
        return text


def _with_setting(old: str, key: str, line: str) -> str:
    lines = old.splitlines(keepends=True)
    end = 0
    for start, stop, values in _statements(lines):
        if key in values:
            return "".join([*lines[:start], line + _comment(lines[start:stop]), *lines[stop:]])
        end = stop
    if not end and lines and not any(one.lstrip().startswith("[") for one in lines):
        end = len(lines)
    if end and not lines[end - 1].endswith("\n"):
        lines[end - 1] += "\n"
    return "".join([*lines[:end], f"{line}\n", *lines[end:]])


def _statements(lines: list[str]) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """The settings before the first table: where each begins and ends, and what it says. One
    ends where what was read so far is whole."""
    start = 0
    while start < len(lines) and not lines[start].lstrip().startswith("["):
        for stop in range(start + 1, len(lines) + 1):
            try:
                values = tomllib.loads("".join(lines[start:stop]))
            except tomllib.TOMLDecodeError:
                continue
            if values:
                yield start, stop, values
            start = stop
            break
        else:
            return


def _comment(lines: list[str]) -> str:
    """What follows the value in its one line, up to the end of the line."""
    whole = "".join(lines)
    ending = "\n" if whole.endswith("\n") else ""
    if len(lines) == 1:
        values = tomllib.loads(whole)
        for found in re.finditer(r"\s*#", whole):
            with contextlib.suppress(tomllib.TOMLDecodeError):
                if tomllib.loads(whole[: found.start()]) == values:
                    return whole[found.start() :]
    return ending


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text)
        temporary.chmod(mode)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
