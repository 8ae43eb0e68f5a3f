"""carrel status: whether the daemon runs, and what it is."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.showing import age_of, fields
from carrel.cli.spec import Verb
from carrel.client.requests import asking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from carrel.client.places import Place

VERB = Verb(
    "Say whether the daemon runs. It is not started.",
    details="The exit code is 6 when it does not run.",
)
NO_DAEMON = 6


def run(call: Call) -> int:
    from carrel.client.link import Link
    from carrel.domain.errors import DaemonUnavailable

    place = call.place
    link = Link(place)
    try:
        info = link.json(asking("/v1/info"))
        total = link.json(asking("/v1/spaces", [("limit", 1)]))["total"]
    except DaemonUnavailable as error:
        if call.json:
            call.show({"running": False, "detail": error.message, "data": place.data})
        else:
            call.say(error.message)
        return NO_DAEMON
    finally:
        link.close()
    address = _address(place)
    if call.json:
        call.show({"running": True, **info, "address": address, "spaces": total})
    else:
        call.say(_described(place, info, address, total))
    return 0


def _described(place: Place, info: dict[str, Any], address: str, total: int) -> str:
    return fields(
        [
            ("daemon", f"{info['version']}, process {info['pid'] or '-'}"),
            ("since", f"{info['started_at']} ({age_of(info['started_at'])})"),
            ("data", info["data"] or ""),
            ("socket", place.socket),
            ("address", address),
            ("spaces", str(total)),
            ("scope", info["scope"] if info["scope"] != "admin" else ""),
        ]
    )


def _address(place: Place) -> str:
    """On TCP, if it listens there."""
    if not place.data:
        return "" if place.socket else place.authority
    from carrel.daemon import control

    return control.status(place.data).address
