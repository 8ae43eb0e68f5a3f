"""Who may see and do what: decided here and nowhere else.

What a caller may not see does not exist for it: the answer is the same as for an id that
was never given.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from carrel.domain.access import Caller, ScopeKind
from carrel.domain.errors import Forbidden, SpaceInvalid, SpaceNotFound
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.spaces import Space, SpaceQuery, SpaceRequest


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


def not_found(word: str) -> SpaceNotFound:
    shown = word if len(word) <= 80 else f"{word[:77]}..."
    return SpaceNotFound(f"There is no space {shown!r}.", hint="`carrel ls` lists them.")


def require_admin(caller: Caller) -> None:
    if caller.scope.kind is not ScopeKind.ADMIN:
        raise Forbidden("Only an administrator may do this.", hint="Use a token of scope admin.")


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


def admit(caller: Caller, request: SpaceRequest, roots: tuple[Path, ...]) -> SpaceRequest:
    """A request for a new space as this caller may make it. `Forbidden`."""
    kind = caller.scope.kind
    if kind is ScopeKind.ADMIN:
        return request
    if kind is ScopeKind.SPACE:
        raise Forbidden("A token for one space makes no others.", hint="Use another token.")
    if request.base_id:
        raise Forbidden("Bases are chosen by administrators.", hint="Name the project.")
    if request.runtime == "process":
        raise Forbidden("Only an administrator may run unconfined.", hint="Use `auto`.")
    if request.place:
        raise Forbidden(
            "Only an administrator may have a space work in a folder itself.",
            hint="Name it as the project.",
        )
    check_reach(request.project, roots)
    key, _, value = caller.scope.value.partition("=")
    if request.labels.get(key, value) != value:
        raise Forbidden(f"This token makes spaces with {key}={value} only.", hint="Leave it out.")
    return dataclasses.replace(request, labels={**request.labels, key: value})


def check_relabel(caller: Caller, space: Space) -> None:
    """A caller who is bound to a label cannot take a space out of it."""
    if not may_see(caller, space):
        raise Forbidden(
            "This would take the space out of the token's reach.", hint="Keep its label."
        )


def check_reach(project: Project, roots: tuple[Path, ...]) -> None:
    """The daemon reads what its own user may; a token reads only what it was opened for."""
    if project.kind is ProjectKind.EMPTY or _is_remote(project):
        return
    real = os.path.realpath(project.location)
    if not any(real == str(root) or real.startswith(f"{root}/") for root in roots):
        raise Forbidden(
            "This token may not read projects of this machine.",
            hint="Use a git URL, or have the folder added to `project_roots`.",
        )


def _is_remote(project: Project) -> bool:
    if project.kind is not ProjectKind.GIT:
        return False
    scheme, found, _ = project.location.partition("://")
    return bool(found) and scheme in ("https", "http", "ssh", "git")


def check_scope_value(kind: ScopeKind, value: str) -> None:
    """Of a new token. Raises `SpaceInvalid`."""
    if kind is ScopeKind.LABEL:
        key, found, wanted = value.partition("=")
        if not (key and found and wanted):
            raise SpaceInvalid("A label's scope is key=value.", hint="For example team=blue.")
