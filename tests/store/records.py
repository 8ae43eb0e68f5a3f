"""Records for the tests of the store."""

from __future__ import annotations

from carrel.domain.access import Scope, ScopeKind, TokenRecord
from carrel.domain.events import EventType, NewEvent
from carrel.domain.limits import LimitKind, Limits, LimitSupport
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.runs import RunRecord, RunState
from carrel.domain.runtimes import Exit, ExitReason, Network
from carrel.domain.spaces import Problem, Retention, Space, SpaceState, Trashed
from carrel.domain.store import Claim, Step
from carrel.domain.trees import Owner
from carrel.domain.turns import Turn, TurnResult, TurnState, Usage

_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"


def space_id(number: int) -> str:
    """An id that sorts as its number does."""
    digits = "".join(_LETTERS[number >> shift & 31] for shift in range(55, -1, -5))
    return f"sp_{digits}"


def space(
    number: int,
    state: SpaceState = SpaceState.READY,
    *,
    name: str | None = None,
    labels: dict[str, str] | None = None,
    created_at: float | None = None,
    removed_at: float | None = None,
    realm: str = "",
) -> Space:
    at = float(number) if created_at is None else created_at
    return Space(
        space_id(number),
        f"desk-{number}" if name is None else name,
        state,
        Project(ProjectKind.FOLDER, "/home/somebody/thing"),
        created_at=at,
        updated_at=at,
        active_at=at,
        labels=labels or {},
        removed_at=removed_at,
        realm=realm,
    )


def full_space(number: int) -> Space:
    """With something in every field."""
    return Space(
        space_id(number),
        "voller Tisch ☕",
        SpaceState.FAILED,
        Project(ProjectKind.GIT, "https://example.org/thing.git", "main"),
        created_at=1_700_000_000.123456,
        updated_at=1_700_000_001.5,
        active_at=1_700_000_002.25,
        runtime="bubblewrap",
        driver="overlay",
        base_id="b" * 64,
        owner=Owner(1_000_001, 1_000_001),
        tree_created_ns=2**63 + 5,
        network=Network.OPEN,
        tier="large",
        limits=Limits(memory_bytes=2**40, cpus=1.5, strict=True),
        enforced=(LimitSupport(LimitKind.MEMORY, True, "cgroup"),),
        labels={"team": "blue", "": "empty key", "quote\"'": "%_"},
        env={"PATH": "/bin", "EMPTY": ""},
        retention=Retention(ttl_s=60.0, idle_s=0.0, keep_s=None, discard=True),
        stopped_at=1_700_000_003.0,
        removed_at=None,
        problem=Problem("tree", "insufficient_disk", "There is no room.", "Make some."),
        restored_from=space_id(7),
        realm="team=blue",
    )


def run(
    number: int,
    state: RunState = RunState.RUNNING,
    *,
    of: int = 1,
    created_at: float | None = None,
) -> RunRecord:
    ended = Exit(ExitReason.SIGNALED, None, 9, 1.0, 2.0, 0.5, 4096)
    return RunRecord(
        f"ru_{space_id(number)[3:]}",
        space_id(of),
        ("sh", "-c", "echo 'ü'"),
        state,
        float(number) if created_at is None else created_at,
        terminal=True,
        timeout_s=1.5,
        pid=number,
        exit=ended if state is RunState.ENDED else None,
    )


def turn(number: int, *, of: int = 1, prompt: str = "do it") -> Turn:
    return Turn(
        f"ru_{space_id(number)[3:]}",
        space_id(of),
        "",
        "scripted",
        "any",
        prompt,
        TurnState.COMPLETE,
        float(number),
        system_prompt="be brief",
        first=b"first",
        result=TurnResult(True, final_output="done"),
        usage=Usage(input_tokens=number),
    )


def step(name: str, *, of: int = 1, operation: str = "create", begun_at: float = 1.0) -> Step:
    return Step(space_id(of), operation, name, begun_at)


def claim(key: str, *, of: int = 1, caller: str = "local") -> Claim:
    return Claim(caller, key, bytes(range(32)), space_id(of), 5.0)


def token(number: int) -> TokenRecord:
    scope = Scope(ScopeKind.LABEL, "team=blue")
    return TokenRecord(
        f"tk_{number}", f"token {number}", scope, bytes([number]) * 32, float(number)
    )


def trashed(number: int, *, trashed_at: float = 1.0) -> Trashed:
    return Trashed(space(number, SpaceState.REMOVED, removed_at=1.0), trashed_at, 100, 3)


def event(of: int = 1, **data: object) -> NewEvent:
    return NewEvent(EventType.STEP_DONE, space_id(of), data, at=9.5)
