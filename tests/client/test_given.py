"""What an agent is given to read, by the clients."""

from __future__ import annotations

import pytest

from carrel import AsyncClient, Attachment, Client, errors

RULES = Attachment("rules.md", "text/markdown", in_context=True)


def test_context_and_attachments(client: Client) -> None:
    with client.space(None, agent="scripted") as space:
        space.put_context("rules.md", b"Be brief.")
        assert [(one.name, one.size) for one in space.context()] == [("rules.md", 9)]
        turn = space.send("run cat /agent/context/rules.md > copy", attachments=[RULES])
        assert turn.result is not None and turn.result.success
        assert space.files.read("copy") == b"Be brief."
        assert space.send("say so", attachments=[Attachment("copy")]).state == "complete"
        space.remove_context("rules.md")
        with pytest.raises(errors.PathNotFound):
            space.send("say so", attachments=[RULES])
        with pytest.raises(errors.PathInvalid):
            space.put_context(".hidden", b"")


async def test_the_same_without_blocking(async_client: AsyncClient) -> None:
    async with async_client.space(None, agent="scripted") as space:
        await space.put_context("a b", b"x")
        assert [one.name for one in await space.context()] == ["a b"]
        await space.remove_context("a b")
        assert await space.context() == []
