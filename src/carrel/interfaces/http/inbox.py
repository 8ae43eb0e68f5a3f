"""What waits for a person: seen, and answered."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from carrel.domain.hub import Item
from carrel.interfaces.http.documenting import errors
from carrel.interfaces.http.encoding import answer, moment
from carrel.interfaces.http.models.inbox import AnswerBody, Answered, InboxList, Seen
from carrel.interfaces.http.serving import caller, serving
from carrel.interfaces.http.views import View

router = APIRouter(tags=["inbox"])


@router.get("/v1/inbox", response_model=InboxList, responses=errors())
async def list_inbox(request: Request) -> Response:
    """Questions that nobody answered, and words to the user that nobody has seen."""
    here = serving(request)
    found = await here.services.inbox.items(caller(request))
    return answer({"items": [_view(one) for one in found]})


@router.post("/v1/inbox/seen", response_model=Seen, responses=errors())
async def see_inbox(request: Request) -> Response:
    """The words to the user have been read; questions stay."""
    here = serving(request)
    return answer({"seen": await here.services.inbox.dismiss(caller(request))})


@router.post(
    "/v1/inbox/{item}/answer",
    response_model=Answered,
    responses=errors("space_not_found", "state_conflict", "message_invalid"),
)
async def answer_item(request: Request, item: str, body: AnswerBody) -> Response:
    here, who = serving(request), caller(request)
    space_id = ""
    if body.space is not None:
        space_id = (await here.services.spaces.existing(who, body.space)).space_id
    seq = await here.services.inbox.answer(who, item, body.answer, space_id)
    return answer({"seq": seq})


def _view(item: Item) -> View:
    return {
        "id": item.item_id,
        "space": item.space_id,
        "seq": item.seq,
        "at": moment(item.at),
        "kind": "question" if item.question else "signal",
        "text": item.text,
        "choices": item.choices,
        "priority": item.priority,
    }
