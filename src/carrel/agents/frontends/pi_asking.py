"""Permissions for Pi, which asks for nothing itself: an extension of ours asks in its place.

The extension runs in Pi, and asks by what Pi has for dialogs; who speaks with Pi answers.
"""

from __future__ import annotations

import json

from carrel.agents.frontends import lines
from carrel.agents.permitting import Permissions

READS = ("read", "grep", "find", "ls")
"""Its tools that need no permission."""

MARK = "carrel"
"""How the extension's own requests are known from those of others."""

FILE = "carrel-asking.ts"

EXTENSION = """\
const mark = MARK;
const reads = new Set(READS);

export default function (pi) {
  pi.on("session_start", async (_event, ctx) => {
    ctx.ui.setStatus(mark, "asks");
  });
  pi.on("tool_call", async (event, ctx) => {
    if (reads.has(event.toolName)) return undefined;
    const asked = { id: event.toolCallId, name: event.toolName, input: event.input };
    const allowed = await ctx.ui.confirm(mark, JSON.stringify(asked), { signal: ctx.signal });
    return allowed === true ? undefined : { block: true, reason: "Permission was denied." };
  });
}
""".replace("MARK", json.dumps(MARK)).replace("READS", json.dumps(READS))
"""It says that it is there: without it Pi would ask for nothing."""


def is_there(event: lines.Object) -> bool:
    return event.get("method") == "setStatus" and event.get("statusKey") == MARK


async def answer(event: lines.Object, permissions: Permissions) -> dict[str, object]:
    """To any dialog of an extension; those that are not ours are closed."""
    response = {"type": "extension_ui_response", "id": event.get("id")}
    asked = lines.decode(lines.text(event, "message").encode("utf-8", "replace"))
    if event.get("method") != "confirm" or event.get("title") != MARK or asked is None:
        return {**response, "cancelled": True}
    id, name = lines.text(asked, "id"), lines.text(asked, "name")
    return {**response, "confirmed": await permissions.allowed(id, name, asked.get("input"))}
