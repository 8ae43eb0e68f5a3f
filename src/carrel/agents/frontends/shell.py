"""A shell command, with its output and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from carrel.agents.children import END_S, child
from carrel.agents.frontends.lines import MAX_OUTPUT


async def run_shell(command: str, cwd: str, env: Mapping[str, str]) -> tuple[str, int]:
    """The beginning of what it wrote, and its exit code. What it left behind is ended."""
    output = bytearray()
    async with child(("/bin/sh", "-c", command), cwd, env, merged=True) as shell:
        shell.stdin.close()
        reading = asyncio.ensure_future(_read(shell.stdout, output))
        try:
            code = await shell.exited
            # All it wrote is in the pipe; whatever it left behind may hold that open.
            await asyncio.wait({reading}, timeout=END_S)
        finally:
            reading.cancel()
    return output.decode("utf-8", "replace"), code


async def _read(stream: asyncio.StreamReader, output: bytearray) -> None:
    while part := await stream.read(65536):
        output += part[: max(0, MAX_OUTPUT - len(output))]
