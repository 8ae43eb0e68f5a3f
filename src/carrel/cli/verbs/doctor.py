"""carrel doctor: what this machine can do, and the command that mends what it cannot."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.layout import clean, cut, loud, terminal_width
from carrel.cli.spec import Verb
from carrel.client.requests import LONG_S, asking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERB = Verb(
    "Say what this machine can do, what is missing, and how to mend it.",
    details="The exit code is 8 when something that is promised does not work.",
)
UNSOUND = 8
MARKS = {"good": "ok", "warning": "!", "bad": "!!"}


def run(call: Call) -> int:
    diagnosis = call.link.json(asking("/v1/doctor", timeout_s=LONG_S))
    code = 0 if diagnosis["healthy"] else UNSOUND
    if call.json:
        call.show(diagnosis)
        return code
    area = ""
    for finding in diagnosis["findings"]:
        if finding["area"] != area:
            area = finding["area"]
            call.say(f"{area}:")
        _tell(call, finding)
    runtime = diagnosis["runtime"] or loud("nothing")
    call.say(f"\nSpaces are confined by {runtime}, with trees by {diagnosis['driver'] or '-'}.")
    return code


def _tell(call: Call, finding: dict[str, Any]) -> None:
    mark = MARKS[finding["grade"]].ljust(2)
    line = f"  {mark} {finding['name']}: {clean(finding['what'])}"
    width = terminal_width()
    call.say(line if width is None or finding["grade"] != "good" else cut(line, width))
    if finding["remedy"]:
        call.say(f"     mend it: {clean(finding['remedy'])}")
