"""What callers may ask for, and what is made of it."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from carrel.domain.access import Caller, ScopeKind
from carrel.domain.errors import Forbidden, InstanceNotFound, MessageInvalid
from carrel.domain.instances import Instance, InstanceRequest, Server, Share, Transport
from carrel.domain.limits import NO_LIMITS
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.spaces import Space
from carrel.service.access import check_reach, may_see


def check(request: InstanceRequest) -> None:
    """Raises `MessageInvalid`."""
    if bool(request.project_path) == bool(request.space_id):
        raise MessageInvalid(
            "An instance is for a project's path or for a space.", hint="Name one of them."
        )
    for name in ("ttl_s", "lease_s", "idle_s", "ready_s"):
        value = getattr(request, name)
        if value is not None and not value > 0:
            raise MessageInvalid(f"{name} must be more than 0.", hint="Leave it out for never.")
    if request.space_id and (request.limits != NO_LIMITS or request.network is not None):
        raise MessageInvalid(
            "An instance in a space has the space's limits and its network.",
            hint="Leave them out, or ask for an instance on a path.",
        )
    if request.space_id and not request.confined:
        raise MessageInvalid(
            "An instance in a space is confined as the space is.", hint="Leave it out."
        )
    if request.streams and request.share is not Share.NONE:
        raise MessageInvalid("Streams are one client's.", hint="Do not share it.")


def check_server(caller: Caller, server: Server, space: Space | None) -> None:
    """Raises `Forbidden`."""
    if server.daemon and space is None and caller.scope.kind is not ScopeKind.ADMIN:
        raise Forbidden(
            f"{server.name} speaks for the daemon's user: only an administrator may have it.",
            hint="Ask for it in a space.",
        )


def check_caller(caller: Caller, request: InstanceRequest, space: Space | None) -> None:
    """Raises `Forbidden`."""
    kind = caller.scope.kind
    if kind is ScopeKind.ADMIN:
        return
    if not request.confined:
        raise Forbidden("Only an administrator may run unconfined.", hint="Leave it out.")
    if not isinstance(request.server, str):
        raise Forbidden(
            "Only an administrator may say how a server is started.", hint="Name a known one."
        )
    if request.owner_pid is not None:
        raise Forbidden("A process is named by who is on this machine.", hint="Use a lease.")
    if space is None and kind is ScopeKind.SPACE:
        raise Forbidden("A token for one space has instances in it only.", hint="Name the space.")


def check_path(caller: Caller, path: str, roots: tuple[Path, ...], data: Path) -> None:
    """`path` is real. Raises `Forbidden`."""
    if caller.scope.kind is not ScopeKind.ADMIN:
        check_reach(Project(ProjectKind.FOLDER, path), roots)
    kept = os.path.realpath(data)
    if _within(path, kept) or _within(kept, path):
        raise Forbidden(
            "Carrel's own data is in this folder, or this folder in it.",
            hint="Name the project's own folder, or a space.",
        )


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def may_have(caller: Caller, instance: Instance, space: Space | None) -> None:
    """What a caller may not see does not exist for it: `InstanceNotFound`."""
    if caller.scope.kind is ScopeKind.ADMIN:
        return
    if space is not None and may_see(caller, space):
        return
    if not instance.space_id and instance.caller == caller.name:
        return
    raise InstanceNotFound(
        f"There is no instance {instance.instance_id!r}.", hint="`carrel instance ls` lists them."
    )


def on_streams(server: Server) -> Server:
    """The server as it is started for a client that speaks on streams."""
    command = server.command if server.transport is Transport.STDIO else server.stdio
    if not command:
        raise MessageInvalid(
            f"{server.name} is not known to speak on its standard streams.",
            hint="Say how (`stdio` in its definition), or connect by its address.",
        )
    return dataclasses.replace(server, command=command)
