"""carrel request files: what a request has made, while its workspace is there."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.request_showing import files_table
from carrel.cli.requesting import REQUEST, request_path
from carrel.cli.spec import Verb
from carrel.client.requests import asking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PAGE = 10_000
VERB = Verb("List the files that a request has made or changed.", REQUEST)


def run(call: Call) -> int:
    files: list[dict[str, Any]] = []
    after = ""
    while True:
        query: list[tuple[str, object]] = [("limit", PAGE)]
        query += [("after", after)] if after else []
        path = request_path(call.text("request"), "files")
        page = call.link.json(asking(path, query))
        files += page["files"]
        after = page["next"]
        if not after:
            break
    if call.json:
        call.show({"files": files, "total": len(files)})
    elif files:
        call.say(files_table(files))
    else:
        call.note("Nothing has changed there.")
    return 0
