"""Starts the real programs of agents as the service does, outside any sandbox."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from carrel.agents.programs import Locator
from carrel.domain.agents import Frontend, Prepared
from carrel.domain.turns import (
    AgentEventType,
    AgentSetup,
    Continuation,
    Told,
    TurnRequest,
    TurnResult,
)
from tests.agents.installed import require_programs

PINNED = Path(__file__).parents[2] / "tools" / "agents"
"""Where `make setup` puts the programs."""

TURN_SECONDS = 60.0
"""For one turn of a real agent on two busy cores."""

POLL_SECONDS = 0.02
"""How soon a test notices that a stand-in was asked."""


@dataclass(frozen=True)
class Done:
    told: list[Told]
    result: TurnResult
    provider: str

    def of(self, type: AgentEventType) -> list[Told]:
        return [told for told in self.told if told.type is type]

    @property
    def key(self) -> str:
        return next((told.key for told in self.told if told.key), "")

    @property
    def continuation(self) -> Continuation:
        assert self.key
        return Continuation(self.provider, self.key)

    @property
    def code(self) -> str:
        return self.result.error.code if self.result.error else ""


def pinned(folder: Path, frontend: str) -> Locator:
    """A locator that finds the pinned programs as if Carrel had installed them."""
    require_programs()
    own = folder / "own"
    own.mkdir()
    (own / frontend).symlink_to(PINNED, target_is_directory=True)
    return Locator(own)


def seat_at(folder: Path, mcp: tuple[str, ...] = (), **credentials: str) -> AgentSetup:
    for name in ("workspace", "state", "context", "home"):
        (folder / name).mkdir()
    return AgentSetup(
        workspace=str(folder / "workspace"),
        state=str(folder / "state"),
        context=str(folder / "context"),
        confined=True,
        mcp=mcp,
        credentials=credentials,
    )


def write_files(prepared: Prepared, setup: AgentSetup) -> None:
    for name, content in prepared.files.items():
        file = Path(setup.state, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def environment(prepared: Prepared, setup: AgentSetup) -> dict[str, str]:
    """As bare as a sandbox's."""
    home = str(Path(setup.workspace).parent / "home")
    return {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": home, **prepared.env}


def run(
    frontend: Frontend,
    request: TurnRequest,
    setup: AgentSetup,
    stop_when: Callable[[], bool] | None = None,
    stop_by: int = signal.SIGINT,
) -> Done:
    """One turn, to its end. `stop_when` is asked until it says yes; then the signal is sent."""
    prepared = frontend.prepare(request, setup)
    write_files(prepared, setup)
    errors = Path(setup.state, "stderr")
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            prepared.argv,
            cwd=setup.workspace,
            env=environment(prepared, setup),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )
    with process, _watched(process, stop_when, stop_by):
        return _heard(process, frontend, request, prepared, errors)


def _heard(
    process: subprocess.Popen[bytes],
    frontend: Frontend,
    request: TurnRequest,
    prepared: Prepared,
    errors: Path,
) -> Done:
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(prepared.first)
        process.stdin.close()
    translator = frontend.translator(request)
    told = [told for line in process.stdout for told in translator.line(line.rstrip(b"\n"))]
    code = process.wait()
    stderr = errors.read_text(errors="replace")
    result = translator.ended(code if code >= 0 else None, stderr)
    return Done(told, result, frontend.provider)


@contextlib.contextmanager
def _watched(
    process: subprocess.Popen[bytes], stop_when: Callable[[], bool] | None, stop_by: int
) -> Iterator[None]:
    """Nothing of its group is left, however the turn ends."""
    over = threading.Event()

    def watch() -> None:
        waits = int(TURN_SECONDS / POLL_SECONDS)
        wanted = stop_when
        for _ in range(waits):
            if over.wait(POLL_SECONDS):
                return
            if wanted is not None and wanted():
                _signal(process.pid, stop_by)
                wanted = None
        _signal(process.pid, signal.SIGKILL)

    watcher = threading.Thread(target=watch, name="watcher")
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        _signal(process.pid, signal.SIGKILL)


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
