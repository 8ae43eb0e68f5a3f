"""carrel rm: a space and everything of it goes."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.many import each
from carrel.cli.spec import SPACES, Argument, Option, Verb
from carrel.client.requests import LONG_S, Request, space_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERB = Verb(
    "Remove spaces.",
    Argument("space", many=True, completes=SPACES),
    details=(
        "A space with changes that nobody took out is kept, unless --force is given. For a "
        "while, `carrel undelete` brings back what was changed."
    ),
    options=(Option("-f", "--force", help="Also with changes that nobody took out."),),
)


def run(call: Call) -> int:
    query = [("force", call.flag("force"))]

    def remove(space: str) -> object:
        removal: dict[str, Any] = call.link.json(
            Request("DELETE", space_path(space), query, timeout_s=LONG_S)
        )
        if not call.json and removal["kept"]:
            count = removal["kept"]["changes"]
            kept = "1 change is" if count == 1 else f"{count} changes are"
            call.note(f"{kept} kept for a while: carrel undelete {removal['space']}")
        elif not call.json and removal["lost"]:
            call.note(f"Nothing was kept: {removal['lost']}")
        return removal

    return each(call, call.texts("space"), remove, quiet=True)
