"""Comments on files of spaces, as the contract has them."""

from __future__ import annotations

from collections.abc import Callable

from carrel.api.types import comments as types
from carrel.api.types.agents import TurnInfo
from carrel.api.types.common import moment, moment_or_none
from carrel.domain.access import Caller
from carrel.domain.turns import Turn
from carrel.service.comments import Comments, PlacedComment


class CommentOperations:
    def __init__(self, comments: Comments, turn_info: Callable[[Turn], TurnInfo]) -> None:
        self._comments = comments
        self._turn_info = turn_info

    async def add(self, caller: Caller, space: str, new: types.NewComment) -> types.CommentInfo:
        return _info(await self._comments.add(caller, space, new.path, new.line, new.text))

    async def list(self, caller: Caller, space: str) -> types.CommentList:
        found = await self._comments.list(caller, space)
        return types.CommentList(comments=tuple(map(_info, found)))

    async def remove(self, caller: Caller, space: str, comment: str) -> types.CommentList:
        await self._comments.remove(caller, space, comment)
        return await self.list(caller, space)

    async def send(
        self, caller: Caller, space: str, asked: types.SendComments
    ) -> types.CommentsSent:
        """All that are open, as one turn of the agent."""
        turn, sent = await self._comments.send(
            caller, space, frontend=asked.frontend or "", queue=asked.queue
        )
        return types.CommentsSent(sent=sent, turn=self._turn_info(turn))


def _info(placed: PlacedComment) -> types.CommentInfo:
    comment, place = placed
    return types.CommentInfo(
        id=comment.comment_id,
        space=comment.space_id,
        path=place.path,
        line=place.line,
        made_at_line=comment.line,
        text=comment.text,
        state=comment.state,
        created_at=moment(comment.created_at),
        sent_at=moment_or_none(comment.sent_at),
        turn=comment.turn,
        first=place.first,
        lines=place.lines,
        changed=place.changed,
        problem=place.why,
    )
