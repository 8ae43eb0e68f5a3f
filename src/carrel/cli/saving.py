"""The files of a request, put into a folder of this machine."""

from __future__ import annotations

import os

from carrel.cli.call import Call
from carrel.cli.layout import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from carrel.client.request_models import Saved


def check_folder(out: str) -> None:
    """Said before anybody has worked for it. `PathWrongKind`."""
    if out and os.path.lexists(out) and not os.path.isdir(out):
        from carrel.domain.errors import PathWrongKind

        raise PathWrongKind(f"{out} is no folder.", hint="Name a folder, or one to be made.")


def save(call: Call, request: str, out: str, *, everything: bool = False) -> Saved:
    """Tells what was left out. `PathExists` when something is there already."""
    from carrel.client.generating import Requests

    check_folder(out)
    saved = Requests(call.link).save(
        request, out, everything=everything, replace=call.flag("force")
    )
    for name, why in saved.skipped:
        call.note(clean(f"left out: {name}: {why}"))
    return saved


def saved_view(saved: Saved) -> dict[str, Any]:
    return {
        "folder": saved.folder,
        "files": list(saved.files),
        "skipped": [{"path": name, "why": why} for name, why in saved.skipped],
    }
