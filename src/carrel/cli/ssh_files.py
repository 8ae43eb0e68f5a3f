"""The user's own configuration of ssh: one line of it includes a file of ours."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from carrel.cli.call import VerbCall, invalid
from carrel.cli.output import clean

OWN = "carrel.conf"
"""Beside the user's own."""
LINE = f"Include ~/.ssh/{OWN}\n"
"""ssh takes what it finds first, so it is the first line."""


def install(call: VerbCall, block: str) -> int:
    own, config = _places()
    before = _read(config)
    after = before if LINE in before.splitlines(keepends=True) else LINE + before
    return _change(call, {own: block, config: after})


def remove(call: VerbCall) -> int:
    own, config = _places()
    kept = [line for line in _read(config).splitlines(keepends=True) if line != LINE]
    return _change(call, {config: "".join(kept), own: None})


def _places() -> tuple[Path, Path]:
    folder = Path.home() / ".ssh"
    return folder / OWN, folder / "config"


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        raise invalid(f"{path} is no text.", hint="Add the line by hand: " + LINE.strip()) from None


def _change(call: VerbCall, wanted: dict[Path, str | None]) -> int:
    changes = {path: text for path, text in wanted.items() if (text or "") != _read(path)}
    if not changes:
        call.note("Nothing has to change.")
        return 0
    for path, text in changes.items():
        lines = difflib.unified_diff(
            _read(path).splitlines(), (text or "").splitlines(), str(path), str(path), lineterm=""
        )
        for line in lines:
            call.say(clean(line))
    if not call.flag("yes"):
        from carrel.cli.output import is_terminal
        from carrel.cli.verbs.agents import confirm

        if not is_terminal(0):
            raise invalid("Nobody agreed to this.", hint="Look at it, then add --yes.")
        if not confirm("Change this?"):
            return 1
    for path, text in changes.items():
        _write(path, text)
    return 0


def _write(path: Path, text: str | None) -> None:
    """A configuration that is a link stays one, and keeps its mode."""
    if text is None or (text == "" and path.name == OWN):
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(mode=0o700, exist_ok=True)
    real = Path(os.path.realpath(path))
    draft = real.with_name(f".{real.name}.carrel")
    mode = real.stat().st_mode & 0o777 if real.exists() else 0o600
    draft.write_text(text)
    draft.chmod(mode)
    draft.rename(real)
