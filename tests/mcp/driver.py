"""Runs inside a space, with nothing but the packages beside it: calls tools of `carrel mcp` by the
SDK's own client, as an agent would.

    driver.py stdio|http auto|legacy STEPS

STEPS is a JSON list of `[tool, arguments]`. A text `$2.space.id` in arguments stands for that part
of the third answer. Prints the tools, then each answer, one JSON object a line.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

from mcp import Client, StdioServerParameters

WORDS = ["-c", "from carrel.cli.main import main; main()", "mcp"]
ENV = {name: os.environ[name] for name in ("CARREL_HUB", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}
"""The SDK's client passes on only what it is told to."""
ADDRESS = "carrel mcp: "


@contextlib.contextmanager
def http_server() -> Iterator[str]:
    command = [sys.executable, *WORDS, "--no-token", "--http", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        line = server.stderr.readline()
        assert line.startswith(ADDRESS), line
        try:
            yield line.removeprefix(ADDRESS).strip()
        finally:
            server.terminate()


@contextlib.asynccontextmanager
async def connected(transport: str, mode: str) -> AsyncIterator[Client]:
    with contextlib.ExitStack() as stack:
        server: str | StdioServerParameters = StdioServerParameters(
            command=sys.executable, args=WORDS, env=ENV
        )
        if transport == "http":
            server = stack.enter_context(http_server())
        async with Client(server, mode=mode) as client:
            yield client


def filled(value: Any, answers: list[dict[str, Any]]) -> Any:
    if isinstance(value, dict):
        return {name: filled(one, answers) for name, one in value.items()}
    if isinstance(value, str) and value.startswith("$"):
        number, *names = value[1:].split(".")
        found: Any = answers[int(number)]["data"]
        for name in names:
            found = found[name]
        return found
    return value


async def call(client: Client, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    reports: list[float] = []

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        reports.append(progress)

    result = await client.call_tool(tool, arguments, progress_callback=heard)
    return {
        "error": result.is_error,
        "data": result.structured_content,
        "text": result.content[0].model_dump()["text"],
        "reports": len(reports),
    }


async def main(transport: str, mode: str, steps: list[tuple[str, dict[str, Any]]]) -> None:
    answers: list[dict[str, Any]] = []
    async with connected(transport, mode) as client:
        tools = (await client.list_tools()).tools
        shown = {one.name: [one.input_schema, one.output_schema] for one in tools}
        print(json.dumps(shown), flush=True)
        for tool, arguments in steps:
            answers.append(await call(client, tool, filled(arguments, answers)))
            print(json.dumps(answers[-1]), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
