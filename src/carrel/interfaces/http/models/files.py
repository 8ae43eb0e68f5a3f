"""Files: what is asked for, and what is told of them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import StringConstraints

from carrel.interfaces.http.models.common import Answer, Body
from carrel.interfaces.http.texts import PathText

Mode = Annotated[str, StringConstraints(pattern=r"^[0-7]{3,4}$")]
"""Octal, as chmod takes it."""


class MoveBody(Body):
    source: PathText
    target: PathText
    replace: bool = False


class FolderBody(Body):
    path: PathText
    mode: Mode = "755"
    parents: bool = False


class FileView(Answer):
    name: str
    type: Literal["file", "folder", "symlink", "other"]
    mode: str
    """Octal."""
    size: int
    modified_ns: int
    target: str | None
    """Where a symlink points."""


class FileList(Answer):
    entries: list[FileView]


class Done(Answer):
    """It is done; there is no more to say."""
