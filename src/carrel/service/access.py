"""Who may see and do what: decided here and nowhere else.

What a caller may not see does not exist for it: the answer is the same as for an id that
was never given.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from carrel.domain.access import Caller, ScopeKind
from carrel.domain.errors import (
    Forbidden,
    MessageInvalid,
    SpaceInvalid,
    SpaceNotFound,
    StateConflict,
)
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.spaces import AUTO, Space, SpaceQuery, SpaceRequest


def may_see(caller: Caller, space: Space) -> bool:
    kind, value = caller.scope.kind, caller.scope.value
    if kind is ScopeKind.ADMIN:
        return True
    if kind is ScopeKind.SPACE:
        return space.space_id == value
    key, _, wanted = value.partition("=")
    return space.labels.get(key) == wanted


def check_visible(caller: Caller, space: Space, word: str) -> Space:
    if not may_see(caller, space):
        raise not_found(word)
    return space


def check_untouched(space: Space) -> None:
    """What is in a space that is being set up is what others begin with, whoever they are: nobody
    works in it but the service, the owner included. `StateConflict`."""
    if space.setting_up:
        raise StateConflict(
            f"{space.name} is where a project is set up, or a landing checked; nobody else works"
            " in it.",
            hint="Wait until that is done. `carrel rm --force` gives it up.",
            state=str(space.state),
        )


def not_found(word: str) -> SpaceNotFound:
    shown = word if len(word) <= 80 else f"{word[:77]}..."
    return SpaceNotFound(f"There is no space {shown!r}.", hint="`carrel ls` lists them.")


def is_owner(caller: Caller) -> bool:
    """Whether it has all the rights of the daemon's user."""
    return caller.scope.kind is ScopeKind.ADMIN


def may_agree(caller: Caller, space: Space) -> bool:
    """To what Carrel itself asks of a person for the space. What the owner's space has not is the
    owner's to give. What a label's token has made has nothing that the token has not; a token of
    one space has no more than that."""
    return is_owner(caller) or (space.guest and caller.scope.kind is ScopeKind.LABEL)


def realm_of(caller: Caller) -> str:
    """Where the names that it gives are kept apart from those of others."""
    return "" if is_owner(caller) else caller.scope.value


def require_admin(caller: Caller) -> None:
    if not is_owner(caller):
        raise Forbidden("Only an administrator may do this.", hint="Use a token of scope admin.")


def shown_project(caller: Caller | None, space: Space) -> Project:
    """What it started from, as this caller may know it: where the owner's folders are, others need
    not know. What it named itself, it knows."""
    project = space.project
    if (caller is not None and is_owner(caller)) or space.guest or _is_remote(project):
        return project
    return dataclasses.replace(project, location=os.path.basename(project.location.rstrip("/")))


DATA_FOLDER = "<data>"
"""What callers without the owner's rights read in its place."""


def concealed(caller: Caller | None, folder: str, value: Any) -> Any:
    """Something in Carrel's own words, as this caller may read it: the daemon's `folder` is named
    to its owner only. Never for what is others' own."""
    if not folder or (caller is not None and is_owner(caller)):
        return value
    return _without(value, folder)


def _without(value: Any, folder: str) -> Any:
    if isinstance(value, str):
        return value.replace(folder, DATA_FOLDER)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _without(dataclasses.asdict(value), folder)
    if isinstance(value, dict):
        return {key: _without(one, folder) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without(one, folder) for one in value]
    return value


def narrow(caller: Caller, query: SpaceQuery) -> SpaceQuery:
    """The same question, of what the caller may see only."""
    kind, value = caller.scope.kind, caller.scope.value
    if kind is ScopeKind.SPACE:
        return dataclasses.replace(query, space_ids=frozenset({value}))
    if kind is ScopeKind.LABEL:
        key, _, wanted = value.partition("=")
        if query.labels.get(key, wanted) != wanted:
            return dataclasses.replace(query, space_ids=frozenset())
        return dataclasses.replace(query, labels={**query.labels, key: wanted})
    return query


GUEST_RUNTIMES = (AUTO, "bubblewrap")
"""Others confine less than a machine may be able to. In `landlock` a token's commands could open
the owner's own files to other accounts, by their modes."""


def admit(caller: Caller, request: SpaceRequest, roots: tuple[Path, ...]) -> SpaceRequest:
    """A request for a new space as this caller may make it. `Forbidden`."""
    kind = caller.scope.kind
    if kind is ScopeKind.ADMIN:
        # What was asked for by somebody else, and is done later, is no wider for that.
        return _narrowed(request, roots) if request.guest else request
    if kind is ScopeKind.SPACE:
        raise Forbidden(
            "A token for one space cannot make other spaces.", hint="Use another token."
        )
    if request.base_id:
        raise Forbidden(
            "Only an administrator may choose a base.", hint="Name the project instead."
        )
    if request.runtime not in GUEST_RUNTIMES:
        raise Forbidden(
            "Only an administrator may choose what confines a space.",
            hint="Use `auto`: it is the best that this machine has.",
        )
    if request.place:
        raise Forbidden(
            "Only an administrator may let a space work directly in a folder.",
            hint="Name the folder as the project: the space then gets a copy.",
        )
    request = _narrowed(request, roots)
    key, _, value = caller.scope.value.partition("=")
    if request.labels.get(key, value) != value:
        raise Forbidden(
            f"This token can make only spaces with the label {key}={value}.",
            hint="Leave that label out: it is set automatically.",
        )
    labels = {**request.labels, key: value}
    own = realm_of(caller)
    return dataclasses.replace(request, labels=labels, realm=own, account=own)


FREE_AGENTS = frozenset({"scripted"})
"""They bring nothing into a space: no key, no network, no folder of the host."""


def has_agent(space: Space, agent: str) -> bool:
    """Whether the space has all that this agent would bring into it."""
    return agent == space.agent or agent in FREE_AGENTS


def check_agent(caller: Caller, space: Space, agent: str) -> None:
    """Another agent would bring another key, and open the network for it. `Forbidden`."""
    if caller.scope.kind is ScopeKind.SPACE and not has_agent(space, agent):
        raise Forbidden(
            f"A token for one space uses that space's own agent, not {agent[:80]!r}.",
            hint="Leave the agent out, or use another token.",
        )


def _narrowed(request: SpaceRequest, roots: tuple[Path, ...]) -> SpaceRequest:
    if request.follow_git:
        raise Forbidden(
            "Only an administrator may have repositories outside of the project read.",
            hint="Leave `follow_git` out.",
        )
    if request.show:
        raise Forbidden(
            "Only an administrator may have folders of this machine shown.",
            hint="Leave `show` out.",
        )
    if request.with_credentials:
        raise Forbidden(
            "Only an administrator may give the owner's credentials to a space.",
            hint="Leave `with_credentials` out.",
        )
    if names_files(request):
        raise Forbidden(
            "Only an administrator may have an image built or taken in for a space.",
            hint="Name an image that is there already: `carrel image ls` lists them.",
        )
    project = _reached(request.project, roots)
    return dataclasses.replace(request, project=project, guest=True, home_tools=False)


def names_files(request: SpaceRequest) -> bool:
    """Whether its image is to be made of something."""
    by_file = request.dockerfile or request.devcontainer or request.by_devcontainer
    services = request.services not in ("", "none")
    return bool(by_file) or services or request.image == AUTO or request.image.startswith("/")


def check_relabel(caller: Caller, before: Space, space: Space) -> None:
    """A caller who is bound to a label cannot take a space out of it, and who has one space not
    out of others' hands, or into them: by its labels they know what is theirs. Who asked for a
    request has its workspace by that, and removes it with that, whatever its labels are."""
    if before.transient and not before.labels.items() <= space.labels.items():
        raise StateConflict(
            f"{before.name} is the workspace of a request, whose caller has it: it keeps its"
            " labels.",
            hint=f"Make another space of it: carrel cp {before.name}:. FOLDER; carrel new FOLDER",
            state=str(before.state),
        )
    if caller.scope.kind is ScopeKind.SPACE:
        raise Forbidden("A token for one space cannot set labels.", hint="Use another token.")
    if not _has_made(caller, before):
        # By another label, others would have it, and keep it.
        raise Forbidden(
            "Only who made this space, or the owner, can change its labels.",
            hint="Ask an administrator.",
        )
    if not may_see(caller, space):
        raise Forbidden(
            "This would take the space out of the token's reach.", hint="Keep its label."
        )


def check_rename(caller: Caller, space: Space) -> None:
    """A label does not make a space one's own: its maker would look for it in vain, or find another
    one by that name. Agents name their own space, so who has just that one may. `Forbidden`."""
    if not _has_made(caller, space):
        raise Forbidden(
            "Only who made this space, or the owner, can rename it.", hint="Use its id."
        )


def _has_made(caller: Caller, space: Space) -> bool:
    return caller.scope.kind is not ScopeKind.LABEL or space.account == realm_of(caller)


MAX_GRACE_S = 600.0
OTHERS_GRACE_S = 30.0
"""The owner waits for it, with what he wants of the space."""


def check_grace(caller: Caller, grace_s: float) -> None:
    """Of a stop. Raises `MessageInvalid`."""
    most = MAX_GRACE_S if is_owner(caller) else OTHERS_GRACE_S
    if not 0 <= grace_s <= most:
        raise MessageInvalid(
            f"A grace of {grace_s} seconds is out of range.", hint=f"Use 0 to {most:.0f}."
        )


def _reached(project: Project, roots: tuple[Path, ...]) -> Project:
    """The daemon reads what its own user may; a token reads only what it was opened for. By its
    real path: what was looked at is what is read, and a link that comes later leads nowhere."""
    if project.kind is ProjectKind.EMPTY or _is_remote(project):
        return project
    if project.kind is ProjectKind.GIT and project.location.startswith(("ssh://", "git://")):
        raise Forbidden(
            "This token can clone only over http and https.",
            hint="Use such a URL, or ask an administrator.",
        )
    try:
        real = os.path.realpath(project.location)
    except (OSError, ValueError):
        # Somebody moves the folders on the way, or that cannot be a path.
        real = ""
    if not any(real == str(root) or real.startswith(f"{root}/") for root in roots):
        raise Forbidden(
            "This token may not read projects of this machine.",
            hint="Use a git URL, or have the folder added to `project_roots`.",
        )
    return dataclasses.replace(project, location=real)


def _is_remote(project: Project) -> bool:
    if project.kind is not ProjectKind.GIT:
        return False
    scheme, found, _ = project.location.partition("://")
    return bool(found) and scheme in ("https", "http")


def check_scope_value(kind: ScopeKind, value: str) -> None:
    """Of a new token. Raises `SpaceInvalid`."""
    if kind is ScopeKind.LABEL:
        key, found, wanted = value.partition("=")
        if not (key and found and wanted):
            raise SpaceInvalid(
                "The scope of a label must be key=value.", hint="For example team=blue."
            )
