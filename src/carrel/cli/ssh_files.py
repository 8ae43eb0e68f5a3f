"""The user's own configuration of ssh: one line of it includes a file of ours."""

from __future__ import annotations

import difflib
import os
import tempfile
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
    there = any(map(_is_ours, before.splitlines()))
    return _change(call, {own: block, config: before if there else LINE + before})


def remove(call: VerbCall) -> int:
    own, config = _places()
    kept = [line for line in _read(config).splitlines(keepends=True) if not _is_ours(line)]
    return _change(call, {config: "".join(kept), own: None})


def is_installed() -> bool:
    """Whether the user's own configuration includes ours."""
    own, config = _places()
    return own.exists() and any(map(_is_ours, _read(config).splitlines()))


def _is_ours(line: str) -> bool:
    return line.rstrip("\r\n") == LINE.rstrip("\n")


def _places() -> tuple[Path, Path]:
    try:
        folder = Path.home() / ".ssh"
    except RuntimeError:
        raise invalid(
            "Nobody knows your home folder.", hint="Set HOME, or use ssh -F with the block."
        ) from None
    return folder / OWN, folder / "config"


def _read(path: Path) -> str:
    """With the ends of lines as they are."""
    try:
        with open(path, newline="") as file:
            return file.read()
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        raise invalid(f"{path} is no text.", hint="Add the line by hand: " + LINE.strip()) from None
    except OSError as error:
        raise _cannot("read", path, error) from None


def _cannot(done: str, path: Path, error: OSError) -> Exception:
    return invalid(
        f"{path} cannot be {done}: {error.strerror or error}.",
        hint="Add the line by hand: " + LINE.strip(),
    )


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
    # What is included is there first, and is included no more before it goes.
    for path, text in changes.items():
        try:
            _write(path, text)
        except OSError as error:
            raise _cannot("changed", path, error) from None
    return 0


def _write(path: Path, text: str | None) -> None:
    """A configuration that is a link stays one, and keeps its mode and its owner: ssh takes none
    of another account. Nobody sees a part of it, nor what two write at once."""
    if text is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(mode=0o700, exist_ok=True)
    real = Path(os.path.realpath(path))
    descriptor, draft = tempfile.mkstemp(prefix=f".{real.name}.", dir=real.parent)
    try:
        with open(descriptor, "w", newline="") as file:
            file.write(text)
            if real.exists():
                before = real.stat()
                if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(file.fileno(), before.st_uid, before.st_gid)
                os.fchmod(file.fileno(), before.st_mode & 0o777)
        os.replace(draft, real)
    except BaseException:
        os.unlink(draft)
        raise
