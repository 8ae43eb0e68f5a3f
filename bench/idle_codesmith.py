"""`carrel codesmith` with nothing to do: what it takes of the processor and of the memory."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from carrel.linux import processes

ANSWER_S = 60.0
END_S = 10.0
_HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}


class CodesmithFailed(Exception):
    """It gives no answer, or a wrong one."""


@dataclass(frozen=True)
class Idle:
    """`ticks` are the kernel's, of the processor, while nothing was said to it; `memory_mb` are
    millions of bytes, of it and all that it started."""

    ticks: int
    memory_mb: float


class Codesmith:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process = process
        self._input: IO[bytes] = process.stdin
        self._output: IO[bytes] = process.stdout
        self._number = 0

    def greet(self) -> None:
        self._ask("initialize", _HELLO)
        self._say({"jsonrpc": "2.0", "method": "notifications/initialized"})
        self._ask("tools/list", {})

    def generate(self, instructions: str) -> None:
        told = self._ask(
            "tools/call", {"name": "generate", "arguments": {"instructions": instructions}}
        )
        if told.get("isError"):
            raise CodesmithFailed(str(told)[:500])

    def idle(self, seconds: float) -> Idle:
        before = self._ticks()
        time.sleep(seconds)
        return Idle(self._ticks() - before, sum(map(_memory_mb, self._pids())))

    def _pids(self) -> list[int]:
        return [self._process.pid, *processes.descendants(self._process.pid)]

    def _ticks(self) -> int:
        """Of user and kernel, of it and its children."""
        words = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, words[11:15]))

    def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        self._say({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        until = time.monotonic() + ANSWER_S
        while time.monotonic() < until:
            if select.select([self._output], [], [], ANSWER_S)[0]:
                answer = json.loads(self._output.readline() or b"{}")
                if answer.get("id") == self._number:
                    result: dict[str, Any] = answer["result"]
                    return result
        raise CodesmithFailed(f"{method} is not answered")

    def _say(self, message: dict[str, Any]) -> None:
        self._input.write(json.dumps(message).encode() + b"\n")
        self._input.flush()


@contextmanager
def open_codesmith(data: Path) -> Iterator[Codesmith]:
    """Ended as its client ends it: by the end of its input."""
    program = Path(sys.executable).with_name("carrel")
    env = {**os.environ, "CARREL_DATA": str(data)}
    env.pop("CARREL_URL", None)
    process = subprocess.Popen(
        [str(program), "codesmith", "--agent", "scripted"],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
    )
    with process:
        try:
            yield Codesmith(process)
            assert process.stdin is not None
            process.stdin.close()
            process.wait(END_S)
        finally:
            process.kill()


def _memory_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0
