"""What takes two sides: questions, editors, deleting, a daemon that is restarted."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from carrel import AsyncClient, AsyncHub
from carrel.client.aio_spaces import AsyncSpace
from carrel.client.http import operation
from carrel.client.hub_protocol import Replayed
from carrel.mcp import hub
from tests.daemon.rig import Daemon
from tests.mcp.rig import STEP_S, agent, answer, call, heard, person

QUESTION, ANSWER = "buffer_user_question", "buffer_user_answer"


async def changed_child(tools: Client, client: AsyncClient) -> str:
    """A space that this one asked for, with work in it."""
    child = str((await call(tools, "spawn_space")).good["id"])
    await (await client.get(child)).run(["sh", "-c", "echo work > file"], check=True)
    return child


async def test_an_answer_that_came_meanwhile(daemon: Daemon, plain: AsyncSpace) -> None:
    async with person(daemon, plain.id) as user:
        async with agent(daemon, plain.id) as tools:
            first = (await call(tools, "ask_user", question="Now?", timeout_s=0)).good
            assert first["answered"] is False and "question_id" in first["hint"]
            other = (await call(tools, "ask_user", question="Later?", timeout_s=0)).good
        question = await answer(user, "yes")
        assert question.id == first["question_id"]
        # Another server: only the log knows the question.
        async with agent(daemon, plain.id) as tools:
            number = first["question_id"]
            again = (await call(tools, "ask_user", question_id=number)).good
            assert (again["answered"], again["answer"]) == (True, "yes")
            number = other["question_id"]
            still = (await call(tools, "ask_user", question_id=number, timeout_s=0)).good
            assert (still["answered"], still["question_id"]) == (False, number)


async def test_questions_at_the_same_time(daemon: Daemon, plain: AsyncSpace) -> None:
    texts = [f"question {n}" for n in range(5)]
    async with person(daemon, plain.id) as user, agent(daemon, plain.id) as tools:
        asked = [asyncio.create_task(call(tools, "ask_user", question=one)) for one in texts]
        for question in [await heard(user, QUESTION) for _ in texts][::-1]:
            payload = {"answer": f"to {question.payload['question']}"}
            await user.publish(ANSWER, payload, space=plain.id, reply_to=question.id)
        answers = [(await one).good["answer"] for one in asked]
    assert answers == [f"to {one}" for one in texts]


class Interrupted(AsyncHub):
    """Somebody always speaks between its connection and what it has replayed."""

    async def replay(self, space: str = "", **since: Any) -> Replayed:
        await self.publish("buffer_custom_word", {}, space=space)
        # What was said has come when this is answered.
        await self.status()
        return await super().replay(space, **since)


async def test_an_earlier_question_is_found_while_others_speak(
    daemon: Daemon, plain: AsyncSpace
) -> None:
    """What comes just before the log is read is not taken for the end of the log."""
    async with person(daemon, plain.id) as user, agent(daemon, plain.id, Interrupted) as tools:
        number = (await call(tools, "ask_user", question="Now?", timeout_s=0)).good["question_id"]
        still = await call(tools, "ask_user", question_id=number, timeout_s=0)
        assert still.good["answered"] is False
        await answer(user, "yes")
        assert (await call(tools, "ask_user", question_id=number)).good["answer"] == "yes"


async def test_what_is_no_question(daemon: Daemon, plain: AsyncSpace) -> None:
    async with agent(daemon, plain.id) as tools:
        assert (await call(tools, "ask_user", question_id="nothing")).code == "message_invalid"
        assert (await call(tools, "ask_user")).code == "message_invalid"
        both = await call(tools, "ask_user", question="a", question_id="b")
        assert both.code == "message_invalid"


async def test_a_call_that_is_given_up_leaves_no_connection(
    daemon: Daemon, plain: AsyncSpace
) -> None:
    async with person(daemon, plain.id) as user, agent(daemon, plain.id) as tools:
        asked = asyncio.create_task(call(tools, "ask_user", question="Well?"))
        question = await heard(user, QUESTION)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        async with asyncio.timeout(STEP_S):
            while len([one for one in await user.clients(plain.id) if one.kind == "agent"]) > 1:
                await heard(user, "client_disconnected")
    assert question.space == plain.id


async def test_across_a_restart_of_the_daemon(own_daemon: Daemon) -> None:
    async with AsyncClient(data=own_daemon.data, autostart=False) as client:
        space = await client.create()
    async with agent(own_daemon, space.id) as tools:
        child = (await call(tools, "spawn_space")).good["id"]
        async with person(own_daemon, space.id) as user:
            asked = asyncio.create_task(call(tools, "ask_user", question="Still there?"))
            waiting = asyncio.create_task(call(tools, "wait_for_space", space=child))
            question = await heard(user, QUESTION)
        await asyncio.to_thread(own_daemon.stop)
        await asyncio.to_thread(own_daemon.start)
        async with person(own_daemon, space.id) as user:
            payload = {"answer": "yes"}
            await user.publish(ANSWER, payload, space=space.id, reply_to=question.id)
            found = (await asked).good
        assert (found["answer"], found["question_id"]) == ("yes", question.id)
        assert (await call(tools, "log_progress", message="going on")).good["seq"] > question.seq
        assert (await call(tools, "space_state")).good["id"] == space.id
        async with AsyncClient(data=own_daemon.data, autostart=False) as client:
            await (await client.get(child)).stop()
        assert (await waiting).good["reached"] is True


async def test_a_daemon_that_does_not_come_back(
    own_daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "ANSWER_S", 0.5)
    async with AsyncClient(data=own_daemon.data, autostart=False) as client:
        space = await client.create()
    async with agent(own_daemon, space.id) as tools:
        await asyncio.to_thread(own_daemon.stop)
        said = await call(tools, "log_progress", message="is anybody there?")
        looked = await call(tools, "list_spaces")
        assert {said.code, looked.code} == {"daemon_unavailable"}
        await asyncio.to_thread(own_daemon.start)


async def test_messages_of_others(daemon: Daemon, plain: AsyncSpace) -> None:
    async with agent(daemon, plain.id) as tools:
        child = (await call(tools, "spawn_space", initial_prompt="do your half")).good["id"]
        async with agent(daemon, child) as others:
            (prompt,) = (await call(others, "read_messages")).good["messages"]
            assert (prompt["text"], prompt["sender_space"]) == ("do your half", plain.id)
            for n in range(3):
                sent = await call(others, "message_space", space=plain.id, text=f"{n}", data=n)
                assert sent.good["seq"]
        page = (await call(tools, "read_messages", limit=2)).good
        rest = (await call(tools, "read_messages", after=page["next"])).good
        found = [(one["text"], one["data"]) for one in page["messages"] + rest["messages"]]
        assert found == [("0", 0), ("1", 1), ("2", 2)]
        assert {one["sender"] for one in page["messages"]} == {"agent"}


async def test_waiting_until_it_has_stopped(
    daemon: Daemon, plain: AsyncSpace, client: AsyncClient
) -> None:
    async with agent(daemon, plain.id) as tools:
        child = (await call(tools, "spawn_space")).good["id"]
        waiting = asyncio.create_task(call(tools, "wait_for_space", space=child, timeout_s=60))
        await (await client.get(child)).stop()
        found = await waiting
        assert (found.good["reached"], found.good["space"]["state"]) == (True, "stopped")


async def test_deleting_work_needs_the_user(
    daemon: Daemon, plain: AsyncSpace, client: AsyncClient
) -> None:
    async with person(daemon, plain.id) as user, agent(daemon, plain.id) as tools:
        child = await changed_child(tools, client)
        early = await call(tools, "delete_space", space=child, timeout_s=0)
        assert early.code == "unexported_changes"
        first = await answer(user, "no")
        assert first.payload["choices"] == ["yes", "no"] and child in first.payload["question"]
        assert first.id in early.data["hint"]
        again = await call(tools, "delete_space", space=child, question_id=first.id)
        assert again.code == "unexported_changes" and "did not agree" in again.data["hint"]

        deleting = asyncio.create_task(call(tools, "delete_space", space=child))
        await answer(user, "Yes")
        assert (await deleting).good == {"removed": child}
        assert (await call(tools, "wait_for_space", space=child)).code == "space_not_found"


async def test_an_agent_that_the_space_has_not_needs_the_user(
    daemon: Daemon, plain: AsyncSpace, client: AsyncClient
) -> None:
    async with (
        person(daemon, plain.id) as user,
        agent(daemon, plain.id) as tools,
        contextlib.AsyncExitStack() as there,
    ):
        there.enter_context(daemon.equipped("claude-code"))
        wanted = {"frontend": "claude-code"}
        early = await call(tools, "spawn_space", **wanted, timeout_s=0)
        assert early.code == "agreement_needed"
        first = await answer(user, "no")
        assert first.sender.kind == "system" and "claude-code" in first.payload["question"]
        assert first.id in early.data["hint"]
        again = await call(tools, "spawn_space", **wanted, question_id=first.id)
        assert again.code == "forbidden"

        making = asyncio.create_task(call(tools, "spawn_space", **wanted))
        await answer(user, "Yes")
        made = (await making).good
        assert (await client.get(made["id"])).info.agent == "claude-code"


async def test_a_yes_to_something_else_is_none(
    daemon: Daemon, plain: AsyncSpace, client: AsyncClient
) -> None:
    async with person(daemon, plain.id) as user, agent(daemon, plain.id) as tools:
        child = await changed_child(tools, client)
        asked = asyncio.create_task(call(tools, "ask_user", question="Tea?"))
        question = await answer(user, "yes")
        await asked
        refused = await call(tools, "delete_space", space=child, question_id=question.id)
        assert refused.code == "message_invalid"
        assert (await call(tools, "list_spaces")).good["spaces"][1]["id"] == child


async def test_an_editor_answers(daemon: Daemon, plain: AsyncSpace) -> None:
    async def edit(hub: AsyncHub) -> list[tuple[str, dict[str, Any]]]:
        seen = []
        for data in ({"path": "a.py", "text": "x"}, None):
            async for message in hub:
                if message.is_request:
                    break
            seen.append((message.type, message.payload))
            if data is None:
                await hub.fail(message, "no_such_operation", "I cannot do that.", hint="Try open.")
            else:
                await hub.respond(message, data)
        return seen

    async with person(daemon, plain.id, "ide") as editor, agent(daemon, plain.id) as tools:
        editing = asyncio.create_task(edit(editor))
        selection = await call(tools, "get_selection")
        assert selection.good == {"data": {"path": "a.py", "text": "x"}}
        failed = await call(tools, "ide_operation", operation="dance", arguments={"n": 1})
        assert failed.code == "no_such_operation" and failed.data["hint"] == "Try open."
        async with asyncio.timeout(STEP_S):
            seen = await editing
    assert seen[1] == ("ide_operation", {"operation": "dance", "arguments": {"n": 1}})


async def test_it_is_no_agent_that_takes_commands(daemon: Daemon, plain: AsyncSpace) -> None:
    """Whoever commands the agent hears that there is none, instead of waiting for this."""
    async with person(daemon, plain.id) as user, agent(daemon, plain.id):
        with pytest.raises(Exception, match="No agent"):
            await user.request("agent_command", {"command": "go"}, space=plain.id)


async def test_deleting_itself(daemon: Daemon, client: AsyncClient) -> None:
    space = await client.create()
    async with agent(daemon, space.id) as tools:
        done = await call(tools, "delete_space")
        assert done.error is False or done.code == "connection_lost", done
        assert (await client.get(space.id)).info.state == "removed"


async def test_a_review_is_asked_for_and_landed(
    daemon: Daemon, client: AsyncClient, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    async with client.space(str(project)) as space, agent(daemon, space.id) as tools:
        await space.run(["sh", "-c", "echo idea > idea"], check=True)
        assert (await call(tools, "request_review")).error
        asked = (await call(tools, "request_review", summary="An idea")).good
        assert asked["answered"] is False
        other = (await call(tools, "ask_user", question="More?", timeout_s=0)).good
        listed = await client.link.json(operation("inbox.list"))
        items = {one["id"]: one for one in listed["items"]}
        item = items[asked["question_id"]]
        assert (item["text"], item["kind"], item["review"]) == ("An idea", "question", True)
        assert items[other["question_id"]]["review"] is False
        await space.land()
        number = asked["question_id"]
        done = (await call(tools, "request_review", question_id=number, timeout_s=STEP_S)).good
        assert (done["answered"], done["answer"]) == (True, "Landed.")
        still = (await call(tools, "ask_user", question_id=other["question_id"], timeout_s=0)).good
        assert still["answered"] is False, "a landing answers nothing else"


async def test_a_checkpoint(daemon: Daemon, client: AsyncClient, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    async with client.space(str(project)) as space, agent(daemon, space.id) as tools:
        await space.run(["sh", "-c", "echo idea > idea"], check=True)
        kept = (await call(tools, "checkpoint", message="the idea")).good
        assert (kept["files"], kept["changed"]) == (1, 1)
        assert (await call(tools, "checkpoint", message="x" * 1001)).code == "message_invalid"
        (listed,) = await space.checkpoints()
        assert (listed.id, listed.message, listed.kind) == (kept["id"], "the idea", "agent")
        await space.run(["rm", "idea"], check=True)
        await space.rewind(kept["id"])
        assert await space.files.read("idea") == b"idea\n"
