"""carrel agents: the frontends, and what of them is installed."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.layout import clean, table
from carrel.cli.spec import Argument, Verb
from carrel.client.requests import LONG_S, asking, telling
from carrel.client.wire import segment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERB = Verb(
    "List the agents that Carrel can run, or install one of them.",
    Argument("action", required=False),
    Argument("name", required=False),
    details="`carrel agents install NAME` puts a pinned version into Carrel's own folder.",
)
HEADS = ("AGENT", "PROVIDER", "VERSION", "LOGGED IN", "WHERE, OR HOW TO INSTALL")
LOGGED = {True: "yes", False: "no", None: "-"}


def run(call: Call) -> int:
    action, name = call.text("action"), call.text("name")
    if action == "install" and name:
        path = f"/v1/agents/{segment(name)}/install"
        told = call.link.json(telling("POST", path, timeout_s=LONG_S))
        if call.json:
            call.show(told)
        else:
            call.say(f"{told['name']} {told['version']}")
        return 0
    if action:
        from carrel.domain.errors import MessageInvalid

        raise MessageInvalid(
            f"{action[:40]!r} is nothing one can do here.", hint="carrel agents install NAME"
        )
    return _list(call)


def _list(call: Call) -> int:
    answer = call.link.json(asking("/v1/agents", timeout_s=LONG_S))
    if call.json:
        call.show(answer)
        return 0
    rows = []
    for one in answer["frontends"]:
        where = one["path"] or ("built in" if one["installed"] else one["install"])
        version = one["version"] or ("-" if one["installed"] else "missing")
        about = one["problem"] or where
        logged = LOGGED[one["logged_in"]]
        rows.append((one["name"], one["provider"], version, logged, clean(about)))
    call.say(table(HEADS, rows, shrink=(4,)))
    for name, without in _without_key(answer["frontends"]).items():
        call.note(clean(f"No key for {', '.join(without)}: carrel auth set {name}"))
    return 0


def _without_key(frontends: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Installed agents that would not get far, by the key that would help."""
    found: dict[str, list[str]] = {}
    for one in frontends:
        if one["installed"] and one["logged_in"] is False:
            for name in one["credentials"][:1]:
                found.setdefault(name, []).append(one["name"])
    return found
