"""carrel context add: documents for the agent of a space."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.giving import put
from carrel.cli.spec import FILES, SPACE, Argument, Verb

VERB = Verb(
    "Give the agent of a space files to read, beside the project.",
    SPACE,
    Argument("files", many=True, completes=FILES),
    details="Under their own names, instead of what had those. It sees them at once.",
)


def run(call: Call) -> int:
    names = [put(call, call.text("space"), path) for path in call.texts("files")]
    if call.json:
        call.show({"files": names})
    return 0
