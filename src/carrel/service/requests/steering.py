"""What is said to a request that is under way."""

from __future__ import annotations

from collections.abc import Sequence

from carrel.domain.access import LOCAL
from carrel.domain.agents import Control, ControlKind
from carrel.domain.errors import StateConflict
from carrel.domain.hub import Item
from carrel.domain.requests import Request, RequestAnswer, RequestState
from carrel.service.requests.parts import RequestParts


async def answer(parts: RequestParts, request: Request, said: RequestAnswer) -> None:
    """To what its agent asked. `StateConflict` when it asks nothing, or something else."""
    if request.state is not RequestState.WORKING or not request.run_id:
        raise StateConflict(
            f"{request.request_id} asks nothing now.", hint="Wait for input_needed."
        )
    asked = [one.id for one in parts.turns.asking(request.run_id)]
    if said.allow is not None or said.id in asked:
        await _permit(parts, request.run_id, asked, said)
        return
    items = await _questions(parts, request.space_id)
    wanted = said.id or (items[0].item_id if len(items) == 1 else "")
    if not wanted:
        raise StateConflict(
            f"{len(items)} questions are open." if items else "Nothing is asked now.",
            hint="Say which, by `id`.",
        )
    await parts.inbox.answer(LOCAL, wanted, said.text, request.space_id)


async def _questions(parts: RequestParts, space_id: str) -> Sequence[Item]:
    items = await parts.inbox.items(LOCAL)
    return [item for item in items if item.question and item.space_id == space_id]


async def _permit(
    parts: RequestParts, run_id: str, asked: Sequence[str], said: RequestAnswer
) -> None:
    wanted = said.id or (asked[0] if len(asked) == 1 else "")
    if wanted not in asked:
        raise StateConflict("That permission is not asked for.", hint="Say which, by `id`.")
    allow = said.allow if said.allow is not None else said.text == "allow"
    control = Control(ControlKind.PERMISSION, id=wanted, allow=allow)
    await parts.turns.control(LOCAL, run_id, control)
