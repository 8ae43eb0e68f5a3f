"""Agents on this machine: the table of frontends, where they sit, and where their events go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from carrel.agents.credentials import AgreedDigests, Credentials
from carrel.agents.folders import SpaceAgentFolders
from carrel.agents.frontends.acp import OwnAcp, OwnAgent, frontend_of
from carrel.agents.imports import Imports
from carrel.agents.programs import Locator
from carrel.agents.registry import BUILT_IN, Registry
from carrel.config import Settings, SettingsInvalid
from carrel.domain.errors import InsufficientDisk, StoreBusy
from carrel.domain.hub import MOST_TOGETHER, SIGNAL, Replay
from carrel.domain.ids import new_id
from carrel.domain.pauses import pauses
from carrel.domain.turns import AgentEvent, AgentEventType, Provider, Turn
from carrel.hub.envelopes import Said, raw
from carrel.hub.hub import HubServer
from carrel.trees.removal import remove_entry

PREFIX = "agent."
"""Of the types that agents' events have on the hub."""
PAGE = 1000


@dataclass(frozen=True)
class Agents:
    """What the service has of them."""

    registry: Registry
    agent_folders: SpaceAgentFolders
    credentials: Credentials
    locator: Locator
    agreements: AgreedDigests
    imports: Imports
    own: Path
    """Where `install` puts programs."""


def open_agents(
    settings: Settings, expect_mcp: Callable[[], None], search: Callable[[], str] = str
) -> Agents:
    """`expect_mcp` is called when an agent is about to start the MCP server of its space. `search`
    says where programs of agents may be beside the daemon's own PATH."""
    data = settings.data
    own = data / "agents"
    locator = Locator(own, beyond=search)
    registry = Registry(locator, settings.restart_s, _own(settings))
    credentials = Credentials(data / "auth")
    return Agents(
        registry,
        SpaceAgentFolders(registry, credentials.given, remove_entry, expect_mcp),
        credentials,
        locator,
        AgreedDigests(data / "trust"),
        Imports(data / "imports"),
        own,
    )


def _own(settings: Settings) -> dict[str, type[OwnAcp]]:
    """Raises `SettingsInvalid`."""
    found: dict[str, type[OwnAcp]] = {}
    for name, said in settings.agents.items():
        if name in BUILT_IN:
            raise SettingsInvalid(
                f"There is an agent {name!r} already.",
                hint="Give your agent another name in the settings.",
            )
        about = OwnAgent(
            said.command,
            Provider(said.provider),
            said.credentials,
            tuple(str(path) for path in said.binds),
            said.network,
            said.env,
        )
        found[name] = frontend_of(name, about)
    return found


class _Payload(msgspec.Struct):
    run_id: str = ""
    seq: int = 0


class _Envelope(msgspec.Struct):
    type: str
    payload: _Payload = msgspec.field(default_factory=_Payload)


class HubTurnLog:
    """Implements `carrel.domain.agents.TurnLog`."""

    def __init__(self, hub: HubServer) -> None:
        self._hub = hub
        self._decode = msgspec.json.Decoder(_Envelope, strict=False).decode

    def last(self, space_id: str) -> int:
        return self._hub.keeper.last(space_id)

    async def tell(self, space_id: str, events: Sequence[AgentEvent]) -> None:
        kept: list[Said] = []
        for event in events:
            said = Said(PREFIX + event.type, raw(_view(event)), f"{event.run_id}.{event.seq}")
            if event.type is AgentEventType.MESSAGE_DELTA:
                self._hub.spread(space_id, said.type, said.payload, id=said.id)
            else:
                kept.append(said)
        for first in range(0, len(kept), MOST_TOGETHER):
            await self._keep(space_id, kept[first : first + MOST_TOGETHER])

    async def alert(self, space_id: str, text: str) -> None:
        payload = {"message": text[:1000], "priority": "high"}
        await self._keep(space_id, [Said(SIGNAL, raw(payload), new_id("al"))])

    async def _keep(self, space_id: str, said: Sequence[Said]) -> None:
        """However long the disk is full, or too much waits for it: the agent goes on, and what
        it says is in its output until it can be told."""
        for pause_s in pauses():
            try:
                await self._hub.record(space_id, said)
                return
            except (StoreBusy, InsufficientDisk):
                await asyncio.sleep(pause_s)

    async def told(self, turn: Turn) -> int:
        """By the log itself: it is what others have heard."""
        await self._hub.keeper.settled()
        found, after = 0, turn.after
        while True:
            bodies, reached = await self._hub.log.replay(Replay(turn.space_id, after, PAGE))
            if reached == after:
                return found
            after = reached
            for body in bodies:
                if f'"{turn.run_id}"'.encode() in body:
                    found = max(found, self._seq(body, turn.run_id))

    def _seq(self, body: bytes, run_id: str) -> int:
        try:
            envelope = self._decode(body)
        except (msgspec.MsgspecError, RecursionError):
            # Of another type, with another payload.
            return 0
        ours = envelope.type.startswith(PREFIX) and envelope.payload.run_id == run_id
        return envelope.payload.seq if ours else 0


def _view(event: AgentEvent) -> Mapping[str, object]:
    view: dict[str, object] = {
        "seq": event.seq,
        "session_id": event.session_id,
        "run_id": event.run_id,
        "payload": event.payload,
    }
    if event.continuation is not None:
        view["continuation"] = event.continuation
    return view
