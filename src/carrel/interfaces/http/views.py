"""What is told of spaces, runs and all else, as members of JSON objects.

Where a record of the domain has just the members that are told, it is given as it is.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from carrel.domain.access import Scope, ScopeKind, Token
from carrel.domain.errors import CarrelError
from carrel.domain.events import Event
from carrel.domain.files import FileInfo
from carrel.domain.runs import RunRecord
from carrel.domain.runtimes import Capabilities, Exit, Proof
from carrel.domain.spaces import Removal, Space, SpaceState, Trashed
from carrel.domain.trees import Base, Change
from carrel.interfaces.http.encoding import moment, moment_or_none
from carrel.service.doctor import Diagnosis
from carrel.service.runs import Runs
from carrel.service.space_servers import Resident
from carrel.service.spaces import Spaces, SpaceUsage
from carrel.service.turns import Turns

View = dict[str, Any]


class SpaceViews:
    """Of spaces, whose record alone does not say what confines them and where they are."""

    def __init__(self, spaces: Spaces, runs: Runs, turns: Turns, data: Path) -> None:
        self._spaces = spaces
        self._runs = runs
        self._turns = turns
        self._folder = f"{data}/spaces"

    async def one(self, space: Space) -> View:
        return self._view(space, await self._confines(space))

    async def many(self, spaces: Iterable[Space]) -> list[View]:
        """What a runtime confines is asked once for all its spaces."""
        known: dict[str, Capabilities | None] = {}
        views = []
        for space in spaces:
            key = space.runtime if space.owner is not None else ""
            if key not in known:
                known[key] = await self._confines(space)
            views.append(self._view(space, known[key]))
        return views

    async def trashed(self, kept: Trashed) -> View:
        # It was kept while it was being removed.
        space = dataclasses.replace(kept.space, state=SpaceState.REMOVED)
        return {
            "space": await self.one(space),
            "trashed_at": moment(kept.trashed_at),
            "bytes_kept": kept.bytes_kept,
            "changes": kept.changes,
        }

    async def removal(self, removal: Removal) -> View:
        return {
            "space": removal.space_id,
            "changes": removal.changes,
            "kept": None if removal.kept is None else await self.trashed(removal.kept),
            "lost": removal.lost,
        }

    async def _confines(self, space: Space) -> Capabilities | None:
        try:
            return await self._spaces.capabilities(space)
        except CarrelError:
            # Made by a daemon that had back ends which this one has not.
            return None

    def _view(self, space: Space, confines: Capabilities | None) -> View:
        gone = space.state is SpaceState.REMOVED
        return {
            "id": space.space_id,
            "name": space.name,
            "state": space.state,
            "project": space.project,
            "base": space.base_id,
            "runtime": space.runtime,
            "confined": None if confines is None else confines.confines,
            "uncovered": () if confines is None else confines.uncovered,
            "driver": space.driver,
            "path": "" if gone else space.place or f"{self._folder}/{space.space_id}/project",
            "network": space.network,
            "tier": space.tier,
            "limits": space.limits,
            "enforced": space.enforced,
            "labels": space.labels,
            "env": space.env,
            "retention": space.retention,
            "created_at": moment(space.created_at),
            "updated_at": moment(space.updated_at),
            "active_at": moment(space.active_at),
            "stopped_at": moment_or_none(space.stopped_at),
            "removed_at": moment_or_none(space.removed_at),
            "problem": space.problem,
            "restored_from": space.restored_from,
            "description": space.description,
            "parent": space.parent,
            "agent": space.agent,
            "spent": space.spent,
            "working": self._turns.working(space.space_id),
            "activity": self._turns.activity(space),
            "mcp": [_resident(one) for one in self._spaces.residents(space)],
            "live_runs": self._runs.live_of(space.space_id),
        }


def _resident(one: Resident) -> View:
    return {
        "name": one.name,
        "state": one.state,
        "instance": one.instance_id,
        "problem": one.problem,
    }


def run_view(record: RunRecord) -> View:
    return {
        "id": record.run_id,
        "space": record.space_id,
        "argv": record.argv,
        "display_command": record.display or shlex.join(record.argv),
        "cwd": record.cwd,
        "state": record.state,
        "terminal": record.terminal,
        "created_at": moment(record.created_at),
        "pid": record.pid,
        "exit": None if record.exit is None else _exit_view(record.exit),
        "failure": record.failure,
        "failure_code": record.failure_code,
    }


def _exit_view(ended: Exit) -> View:
    return {
        "reason": ended.reason,
        "code": ended.code,
        "signal": ended.signal,
        "started_at": moment(ended.started_at),
        "ended_at": moment(ended.ended_at),
        "cpu_seconds": ended.cpu_seconds,
        "max_rss_bytes": ended.max_rss_bytes,
    }


def change_view(change: Change) -> View:
    return {
        "path": change.path,
        "kind": change.kind,
        "old_path": change.old_path,
        "old_type": change.old_type,
        "new_type": change.new_type,
        "old_mode": change.old_mode,
        "new_mode": change.new_mode,
        "size": change.size,
    }


def usage_view(usage: SpaceUsage) -> View:
    sandbox, tree = usage.sandbox, usage.tree
    return {
        "space": usage.space_id,
        "cpu_seconds": sandbox.cpu_seconds,
        "memory_bytes": sandbox.memory_bytes,
        "memory_peak_bytes": sandbox.memory_peak_bytes,
        "pids": sandbox.pids,
        "disk_bytes": None if tree is None else tree.bytes_used,
        "disk_files": None if tree is None else tree.files_used,
    }


def proof_view(space_id: str, proof: Proof) -> View:
    return {
        "space": space_id,
        "runtime": proof.runtime,
        "holds": proof.holds,
        "attempts": proof.attempts,
    }


def file_view(info: FileInfo) -> View:
    return {
        "name": info.name,
        "type": info.type,
        "mode": f"{info.mode:o}",
        "size": info.size,
        "modified_ns": info.modified_ns,
        "target": info.target,
    }


def event_view(event: Event) -> View:
    return {
        "seq": event.seq,
        "type": event.type,
        "space": event.space_id,
        "at": moment(event.at),
        "data": event.data,
    }


def scope_text(scope: Scope) -> str:
    return str(scope.kind) if scope.kind is ScopeKind.ADMIN else f"{scope.kind}:{scope.value}"


def token_view(token: Token) -> View:
    return {
        "id": token.token_id,
        "name": token.name,
        "scope": scope_text(token.scope),
        "created_at": moment(token.created_at),
        "expires_at": moment_or_none(token.expires_at),
        "used_at": moment_or_none(token.used_at),
        "revoked_at": moment_or_none(token.revoked_at),
    }


def base_view(base: Base) -> View:
    return {
        "id": base.base_id,
        "project": base.project,
        "entries": base.entries,
        "size_bytes": base.size_bytes,
        "created_at": moment(base.created_at),
        "has_git": base.has_git,
        "skipped": base.skipped,
        "unstable": base.unstable,
    }


def diagnosis_view(diagnosis: Diagnosis) -> View:
    return {
        "healthy": diagnosis.healthy,
        "runtime": diagnosis.runtime,
        "driver": diagnosis.driver,
        "findings": diagnosis.findings,
    }
