"""What is true when the start of a turn has been told."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from carrel.app.machine import LocalSweeper
from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.turns import AgentEvent, AgentEventType, TurnRequest
from tests.accounts import PYTHON, SOURCE, Account, run_as
from tests.service.rig import RUN_S, make


async def test_the_agent_has_its_prompt(services: Services) -> None:
    """So it goes on when the daemon dies right after. More than a pipe holds is taken late."""
    space = await make(services, agent="scripted")
    turn = await services.turns.start(
        LOCAL, space.space_id, TurnRequest("", "say done" + "!" * 200_000)
    )
    live = services.runs.live(turn.run_id)
    assert turn.first and (live is None or live.run.input_bytes == len(turn.first))
    async with asyncio.timeout(RUN_S):
        ended = await services.turns.wait(LOCAL, turn.run_id)
    assert ended.result is not None and ended.result.success


async def test_what_it_does_is_known_while_it_works(services: Services) -> None:
    space = await make(services, agent="scripted")
    turn = await services.turns.start(LOCAL, space.space_id, TurnRequest("", "sleep 600"))
    assert services.turns.doing(space) == ""
    # No agent that needs no model tries again, and none does for a minute.
    told = {"text": "Try 1 of 10 again", "kind": "retry", "status": 529}
    event = AgentEvent(AgentEventType.LOG, time.time() - 125, 1, "s", turn.run_id, told)
    services.turns._live[turn.run_id].followed.waiting.hear(event)
    assert services.turns.doing(space) == "retrying (529) for 2 min"
    await services.turns.interrupt(LOCAL, turn.run_id)
    async with asyncio.timeout(RUN_S):
        await services.turns.wait(LOCAL, turn.run_id)
    assert services.turns.doing(space) == ""


async def test_a_trial_that_goes_while_strays_are_looked_for(
    services: Services, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data / "proof-old").mkdir()
    names = ["proof-gone", "proof-old"]
    monkeypatch.setattr("carrel.app.machine.os.listdir", lambda _: names)
    sweeper = LocalSweeper(data, services.app, time.time() + 60)
    assert [one.path for one in sweeper._trials()] == [str(data / "proof-old")]


CLOSED = """
import asyncio, sys
from pathlib import Path
from carrel.domain.access import LOCAL
from carrel.domain.agents import TurnRequest
from carrel.domain.errors import CarrelError
from tests.service.rig import make, opened, run

async def main():
    async with opened(Path(sys.argv[1])) as services:
        space = await make(services, agent="scripted")
        for mode in ("0", "700"):
            await run(services, space, f"chmod {mode} /agent/state")
            try:
                turn = await services.turns.start(LOCAL, space.space_id, TurnRequest("", "say x"))
                print((await services.turns.wait(LOCAL, turn.run_id)).state)
            except CarrelError as error:
                print(error.code, error.hint)

asyncio.run(main())
"""


def test_an_agents_folder_that_was_closed_from_inside(ordinary_user: Account, data: Path) -> None:
    """Only root passes through it. Whoever prompts is told what to do, and that helps."""
    folder = data / "own"
    folder.mkdir()
    os.chown(folder, ordinary_user.uid, ordinary_user.gid)
    done = run_as(ordinary_user, [PYTHON, "-c", CLOSED, str(folder)], cwd=SOURCE)
    told = ["resolve_failed In the space: chmod -R u+rwX /agent/state", "complete"]
    assert done.stdout.splitlines() == told, done
