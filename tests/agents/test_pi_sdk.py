"""Pi in its RPC mode, against a stand-in for the model's API."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from carrel.agents.frontends.pi_driver import PiTranslator
from carrel.agents.frontends.pi_sdk import PiSdk
from carrel.agents.programs import Locator
from carrel.agents.turns import conduct
from carrel.agents.wire import load
from carrel.domain.errors import FrontendNotInstalled
from carrel.domain.turns import AgentEventType as Type
from carrel.domain.turns import (
    AgentSetup,
    Continuation,
    Control,
    ControlKind,
    Permission,
    Told,
    TurnRequest,
    TurnResult,
)
from tests.agents.staging import (
    INTERRUPT,
    WAIT_S,
    Heard,
    Held,
    code_of,
    pinned,
    setup_in,
    started,
)
from tests.agents.standins import UNKNOWN_MODEL, Standin, serving
from tests.sampling import whole_only


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def api() -> Iterator[Standin]:
    with serving() as standin:
        yield standin


@pytest.fixture
def setup(tmp_path: Path) -> AgentSetup:
    return replace(setup_in(tmp_path), credentials={"openai": "dummy-key"})


@pytest.fixture
def frontend(tmp_path: Path) -> PiSdk:
    return PiSdk(pinned(tmp_path, "pi-sdk"))


def asking(api: Standin, prompt: str) -> TurnRequest:
    env = {"OPENAI_BASE_URL": f"{api.url}/v1"}
    return TurnRequest("pi-sdk", prompt, session_id="s", run_id="r", env=env)


def going_on(request: TurnRequest, key: str) -> TurnRequest:
    return replace(request, continuation=Continuation("openai", key))


async def play(
    frontend: PiSdk, setup: AgentSetup, request: TurnRequest, heard: Heard | None = None
) -> tuple[TurnResult, Heard]:
    heard = heard or Heard()
    driver = load(frontend.driver, frontend.options(request))
    return await asyncio.wait_for(conduct(driver, request, setup, heard), WAIT_S), heard


async def test_a_turn_and_the_next_one(frontend: PiSdk, setup: AgentSetup, api: Standin) -> None:
    result, first = await play(frontend, setup, asking(api, "hello"))
    assert result == TurnResult(True, "reply 1: hello")
    assert first.texts == ["reply 1: hello"] and first.of(Type.MESSAGE_DELTA)
    (usage,) = first.of(Type.USAGE)
    assert usage.payload["output_tokens"]
    assert api.requests[0].headers["authorization"] == "Bearer dummy-key"
    result, second = await play(frontend, setup, going_on(asking(api, "again"), first.key))
    assert result.final_output == "reply 2: again"
    assert second.key == first.key


# In a sample it is tried in the suite of all frontends.
@whole_only
async def test_the_same_session_without_a_continuation_is_a_new_conversation(
    frontend: PiSdk, setup: AgentSetup, api: Standin
) -> None:
    _, first = await play(frontend, setup, asking(api, "hello"))
    result, other = await play(frontend, setup, asking(api, "hello"))
    assert result.final_output == "reply 1: hello"
    assert other.key != first.key


# In a sample it does in the suite of all frontends.
@whole_only
async def test_it_writes_a_file(frontend: PiSdk, setup: AgentSetup, api: Standin) -> None:
    result, heard = await play(frontend, setup, asking(api, "WRITE a.txt words"))
    assert result.success
    assert "words" in Path(setup.workspace, "a.txt").read_text()
    assert [told.payload["name"] for told in heard.of(Type.TOOL_CALL)] == ["write"]
    assert heard.of(Type.TOOL_RESULT)[0].payload["is_error"] is False


async def test_without_permission_it_only_reads(
    frontend: PiSdk, setup: AgentSetup, api: Standin
) -> None:
    request = replace(asking(api, "WRITE a.txt words"), permission=Permission.DENY)
    await play(frontend, setup, request)
    assert not Path(setup.workspace, "a.txt").exists()


@pytest.mark.parametrize("key", ["0" * 64, "../pi", "nonsense"])
async def test_an_unknown_conversation_is_not_found(
    frontend: PiSdk, setup: AgentSetup, api: Standin, key: str
) -> None:
    result, _ = await play(frontend, setup, going_on(asking(api, "hello"), key))
    assert code_of(result) == "continuation_not_found"
    assert not api.requests


# In a sample it is tried in the suite of all frontends.
@whole_only
async def test_an_unknown_model(frontend: PiSdk, setup: AgentSetup, api: Standin) -> None:
    result, _ = await play(frontend, setup, replace(asking(api, "hello"), model=UNKNOWN_MODEL))
    assert code_of(result) == "model_not_supported"


async def test_it_is_interrupted(frontend: PiSdk, setup: AgentSetup, api: Standin) -> None:
    _, first = await play(frontend, setup, asking(api, "hello"))
    heard = Heard(lambda told: INTERRUPT if told.key else None)
    result, _ = await play(frontend, setup, going_on(asking(api, "SLEEP 600"), first.key), heard)
    assert code_of(result) == "interrupted"
    result, _ = await play(frontend, setup, going_on(asking(api, "again"), first.key))
    assert result.success and result.final_output.startswith("reply 3")


async def test_what_is_said_meanwhile_is_answered(
    frontend: PiSdk, setup: AgentSetup, api: Standin
) -> None:
    more = Control(ControlKind.INPUT, text="more")
    heard = Heard(lambda told: more if told.key else None)
    result, _ = await play(frontend, setup, asking(api, "hello"), heard)
    assert heard.texts == ["reply 1: hello", "reply 2: more"]
    assert result.final_output == "reply 2: more"


async def test_nothing_is_left_of_a_turn_that_is_stopped(
    frontend: PiSdk, setup: AgentSetup, api: Standin, tmp_path: Path
) -> None:
    held = Held(tmp_path)
    turn = asyncio.ensure_future(play(frontend, setup, asking(api, f"RUN {held.command}")))
    await held.taken()
    turn.cancel()
    await asyncio.wait({turn}, timeout=WAIT_S)
    assert turn.cancelled()
    assert held.is_free()


async def test_in_its_own_program(frontend: PiSdk, setup: AgentSetup, api: Standin) -> None:
    request = asking(api, "hello")
    prepared = frontend.prepare(request, setup)
    async with started(prepared, setup, frontend.translator(request)) as program:
        result = await program.result()
    assert result.final_output == "reply 1: hello"
    assert program.heard.key


def test_it_is_found(frontend: PiSdk, setup: AgentSetup, tmp_path: Path) -> None:
    assert frontend.find().installed
    missing = PiSdk(Locator(tmp_path, search=""))
    assert not missing.find().installed
    with pytest.raises(FrontendNotInstalled):
        missing.prepare(TurnRequest("pi-sdk", "hello"), setup)


@pytest.mark.parametrize("event", [{}, {"type": "new"}, {"type": "message_end", "message": 1}])
def test_what_it_does_not_know_is_logged(event: dict[str, object]) -> None:
    told: list[Told] = list(PiTranslator().event(event))
    assert all(one.type is Type.LOG for one in told)
