"""What an agent is given for one turn: its folders, servers and keys, and what of its project it
may read."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass

from carrel.domain.agents import (
    AgentFolders,
    Brought,
    Frontend,
    KeepsLogin,
    Prepared,
    SetupRequest,
)
from carrel.domain.errors import PermissionDenied
from carrel.domain.ids import new_id
from carrel.domain.keys import looks_like_key
from carrel.domain.turns import InteractionMode, Permission, Turn, TurnRequest
from carrel.service.agents import check_network
from carrel.service.credentials import AgentKeys
from carrel.service.files import seen
from carrel.service.open_spaces import OpenSpace
from carrel.service.space_servers import Given
from carrel.service.trust import GIT
from carrel.service.trust import check as check_trust


@dataclass(frozen=True)
class TurnSetup:
    folders: AgentFolders
    keys: AgentKeys

    def prepare(
        self,
        opened: OpenSpace,
        frontend: Frontend,
        request: TurnRequest,
        given: Given,
        brought: Brought,
        *,
        owner: bool,
    ) -> Prepared:
        """Puts what the agent reads where it does. Blocking, quick."""
        place = place_of(opened, frontend)
        setup = self.folders.setup(place)
        # The space's variables are in every process of it, so they count as the turn's own do.
        request = dataclasses.replace(request, env={**opened.space.env, **request.env})
        secret = self.keys.given(frontend, request.env, owner=owner)
        has_key = bool(secret.names) or any(looks_like_key(*one) for one in request.env.items())
        off = check_trust(brought, frontend, opened.space.name) if has_key else ()
        elsewhere = (GIT,) if has_key and brought.elsewhere else ()
        setup = dataclasses.replace(
            setup,
            servers=given.servers,
            server_env=given.env,
            credentials=secret.credentials,
            imported=secret.imported,
            untrusted=(*(brought.paths if off else ()), *elsewhere),
            agreed=brought.paths if brought.agreed else (),
            also_read=tuple(
                inside for inside, real in opened.space.shown.items() if os.path.isdir(real)
            ),
        )
        prepared = frontend.prepare(seen(request, setup), setup)
        check_network(frontend, opened.space.network, request.env)
        if request.mode is not InteractionMode.INTERACTIVE and not self._has_login(place):
            # In a terminal a person can log in.
            self.keys.check_some(frontend, request.env, secret, owner=owner)
        self.folders.put(place, prepared)
        notes = (*off, *given.notes, *prepared.notes)
        return dataclasses.replace(prepared, notes=notes, keys=secret.names)

    def _has_login(self, place: SetupRequest) -> bool:
        """Somebody has logged the agent in, in its space."""
        frontend = place.frontend
        return isinstance(frontend, KeepsLogin) and self.folders.has(
            place.folder, frontend.login_file
        )


def place_of(opened: OpenSpace, frontend: Frontend) -> SetupRequest:
    abilities = opened.runtime.capabilities
    spec = opened.sandbox.spec
    return SetupRequest(
        spec.folder, spec.tree, spec.owner, frontend, abilities.own_paths, abilities.confines
    )


def resolved(opened: OpenSpace, request: TurnRequest, run_id: str) -> TurnRequest:
    """With all that was left open. Raises `PermissionDenied`."""
    confines = opened.runtime.capabilities.confines
    permission = request.permission
    if permission is None:
        permission = Permission.SANDBOXED if confines else Permission.ASK
    elif permission is Permission.SANDBOXED and not confines:
        raise PermissionDenied(
            f"The runtime {opened.runtime.name} confines nothing.",
            hint="Ask for permission `ask` or `deny`, or use a runtime that confines.",
        )
    session_id = request.session_id or new_id("se")
    return dataclasses.replace(request, permission=permission, run_id=run_id, session_id=session_id)


def request_of(turn: Turn) -> TurnRequest:
    return TurnRequest(
        frontend=turn.frontend,
        prompt=turn.prompt,
        session_id=turn.session_id,
        run_id=turn.run_id,
        model=turn.model,
        continuation=turn.asked,
        permission=turn.permission,
        system_prompt=turn.system_prompt,
        timeout_s=turn.timeout_s,
        mode=turn.mode,
    )
