"""What happens to spaces, as an ordered log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class EventType(StrEnum):
    SPACE_STATE = "space.state"
    """`from`, `to`; with `problem` when it failed."""
    SPACE_UPDATED = "space.updated"
    """`name`, `description`, `labels`, `retention` or `enforced` as they are now."""
    SPACE_RESTORED = "space.restored"
    """`from`: the removed space."""
    STEP_BEGUN = "step.begun"
    """`operation`, `step`."""
    STEP_DONE = "step.done"
    STEP_FAILED = "step.failed"
    RUN_STARTED = "run.started"
    """`run_id`, `argv`."""
    RUN_ENDED = "run.ended"
    """`run_id`, and its exit."""
    LIMIT_HIT = "limit.hit"
    """`kind`, `figure`, `message`, `run_id` if it was one command's."""
    INSTANCE_STATE = "instance.state"
    """`instance_id`, `server`, `to`; with `problem` when something was wrong with it."""
    SERVER_FAILED = "server.failed"
    """`server`, `problem`: one that the space was made with could not be started."""
    SERVICE_STATE = "service.state"
    """`service`, `to`: one that runs beside a space's commands; with `run_id`, `code`, `restarts`
    or `problem`."""
    REQUEST_STATE = "request.state"
    """`request_id`, `key`, `to`; on its way `progress` and `message`."""
    LANDED = "landing.landed"
    """`landing_id`, `branch`, `before`, `after`, `files`."""
    LANDING_QUEUED = "landing.queued"
    """`entry_id`, `branch`."""
    LANDING_CHECKED = "landing.checked"
    """`branch`, `passed`."""
    LANDING_RETURNED = "landing.returned"
    """`entry_id`, `branch`, `code`, `reason`: it left the queue, and did not land."""
    UNDONE = "landing.undone"
    """`landing_id`, `branch`."""
    TAKEN = "take.done"
    """`take_id`, `from` (a space), `files`."""
    TAKE_UNDONE = "take.undone"
    """`take_id`."""
    COMMENT_ADDED = "comment.added"
    """`comment_id`, `path`, `line`, `text`."""
    COMMENT_REMOVED = "comment.removed"
    """`comment_id`."""
    COMMENTS_SENT = "comments.sent"
    """`comments`: their ids; `turn`."""
    CHECKPOINT = "checkpoint.taken"
    """`checkpoint_id`, `kind`, `files`, `changed`, `turn`; or the `problem` of one that could not
    be."""
    REWOUND = "checkpoint.rewound"
    """`checkpoint_id`: the one before it, `to`; `undo` when that took a rewind back."""
    FORKED = "space.forked"
    """`from`: the space, `checkpoint_id`."""
    EXPORTED = "space.exported"
    """`format`: the work was written as a file, for whoever asked."""
    RACE_BEGUN = "race.begun"
    """`race`, `racers`: all its spaces. Of each of them; how it ends is told by their turns and
    commands."""
    PORT_LISTENS = "port.listens"
    """`port`, `host`, `program`: something in the space begins to listen, while somebody looks."""
    PORT_CLOSED = "port.closed"
    """`port`, `host`."""
    FORWARD_BEGUN = "forward.begun"
    """`port`, `local`: the port of the space is this one of the host's loopback."""
    FORWARD_ENDED = "forward.ended"
    """`port`, `local`; with `problem` when nobody asked for that."""
    SSH_BEGUN = "ssh.begun"
    """`session`, `place`, `from`: local, for the owner's own socket; else who connected to the
    listener, with `key`, the id of the key."""
    SSH_DID = "ssh.did"
    """`session`, `what`: shell, command, or a subsystem such as sftp."""
    SSH_ENDED = "ssh.ended"
    """`session`."""
    RECONCILED = "reconciled"
    """`actions`: what was made to fit the record."""
    UNREADABLE = "event.unreadable"
    """`type`, `space_seq`, `bytes`: stands where the log has something that cannot be read. It
    is told, never kept."""


@dataclass(frozen=True)
class NewEvent:
    """One that has no place in the log yet. `space_id` is empty for the daemon's own."""

    type: EventType
    space_id: str = ""
    data: Mapping[str, object] = field(default_factory=dict)
    at: float = 0.0


@dataclass(frozen=True)
class Event:
    """`seq` grows from event to event, over all spaces. `type` is an `EventType`, or that of a
    message that somebody published."""

    seq: int
    type: str
    space_id: str
    data: Mapping[str, object]
    at: float


@dataclass(frozen=True)
class EventQuery:
    """Those after `after`; of some spaces, types or labels only."""

    after: int = 0
    space_ids: frozenset[str] | None = None
    types: frozenset[str] | None = None
    limit: int = 500
