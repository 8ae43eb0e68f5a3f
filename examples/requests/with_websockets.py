"""Makes a request without Carrel's client: with the package `websockets` and a token. It reconnects
after a lost connection."""

import asyncio
import json
import os
import sys
import uuid
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

SERVER, TOKEN = os.environ["CARREL_SERVER"], os.environ["CARREL_TOKEN"]
INSTRUCTIONS = """\
write hello.py print('hello')
ask Is that all?
say It is done."""


async def generate(asked: dict[str, Any]) -> dict[str, Any]:
    """Returns the result. Raises RuntimeError with the error's code and message."""
    request_id = asked.setdefault("request_id", str(uuid.uuid4()))
    opening = {"type": "generate", **asked}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    # Results contain files: they may be larger than the library's default limit.
    address = f"ws://{SERVER}/v1/requests"
    # `connect` reconnects automatically, after longer and longer pauses.
    async for socket in connect(address, additional_headers=headers, max_size=None):
        try:
            await socket.send(json.dumps(opening))
            async for message in socket:
                frame: dict[str, Any] = json.loads(message)
                if "seq" in frame and frame["type"] != "input_needed":
                    # From here on a new connection continues after this frame. A question is
                    # sent again until a later frame arrives: the answer may have been lost.
                    opening = {"type": "resume", "request_id": request_id, "after": frame["seq"]}
                if frame["type"] == "progress":
                    print(f"{frame['progress']:4.0%} {frame['message']}")
                elif frame["type"] == "input_needed":
                    answer = {"type": "answer", "request_id": request_id, "id": frame["id"]}
                    await socket.send(json.dumps({**answer, "text": "yes"}))
                elif frame["type"] == "result":
                    # Closes the connection before the event loop ends.
                    await socket.close()
                    return frame
                elif frame["type"] == "error" and frame.get("to", "generate") != "answer":
                    raise RuntimeError(f"{frame['code']}: {frame['message']}")
        except ConnectionClosed:
            continue
    raise AssertionError("`connect` reconnects without end")


async def main() -> int:
    result = await generate({"instructions": INSTRUCTIONS, "frontend": "scripted"})
    for file in result["files"]:
        print(file["change"], file["path"], file["lines"], file["language"])
        print(file["text"])
    return 0 if result["complete"] else 1


try:
    sys.exit(asyncio.run(main()))
except (RuntimeError, InvalidStatus) as error:
    sys.exit(str(error))
