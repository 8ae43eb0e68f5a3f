"""Comments on files of spaces: what is asked for, and what is told of them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from carrel.api.types.agents import TurnInfo
from carrel.api.types.common import Answer, Body, Moment, PathText
from carrel.api.types.spaces import FrontendName
from carrel.domain.comments import CommentState


class NewComment(Body, frozen=True, kw_only=True):
    path: PathText
    """Of a text file, from the root of the project."""
    line: Annotated[int, Meta(ge=1, le=1 << 31)]
    text: Annotated[str, Meta(min_length=1, max_length=4000)]


class SendComments(Body, frozen=True, kw_only=True):
    frontend: FrontendName | None = None
    """Null: the space's own agent."""
    queue: bool = False
    """Where a turn runs, the comments wait until it has ended."""


class CommentInfo(Answer, frozen=True, kw_only=True):
    id: str
    space: str
    path: str
    """As the file is called now."""
    line: int | None
    """Where the line is now; null: it is not there any more, or the comment was sent."""
    made_at_line: int
    text: str
    state: CommentState
    created_at: Moment
    sent_at: Moment | None = None
    turn: str = ""
    """The one that it was sent with."""
    first: int
    """The number of the first of `lines`."""
    lines: tuple[str, ...]
    """The line and some around it, as they are now; of a line that is gone, as they were."""
    changed: bool = False
    """The line itself has changed since, and those around it have not."""
    problem: str = ""
    """Why there is no `line`."""


class CommentList(Answer, frozen=True, kw_only=True):
    comments: tuple[CommentInfo, ...]


class CommentsSent(Answer, frozen=True, kw_only=True):
    sent: int
    turn: TurnInfo
