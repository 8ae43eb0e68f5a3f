"""What the daemon tells of instances and of the kinds of servers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from carrel.client.models import Record
from carrel.domain.instances import InstanceState, Released, Restart, Share, Transport, Warmth
from carrel.domain.limits import Limits, LimitSupport
from carrel.domain.runtimes import Network
from carrel.domain.spaces import Problem


class InstanceInfo(Record, frozen=True, kw_only=True):
    """`token` is told to who asked for it, and never in lists."""

    instance_id: str
    server: str
    state: InstanceState
    host: str
    port: int
    url: str
    transport: Transport
    socket: str = ""
    """Of one on streams."""
    inside_url: str = ""
    """For what runs in the same space."""
    has_token: bool = False
    token: str | None = None
    hold: str | None = None
    """What it is released by; told when it is started."""
    pid: int = 0
    started_in_ms: float = 0.0
    project_path: str = ""
    space_id: str = ""
    runtime: str = ""
    confined: bool = True
    network: Network = Network.NONE
    notes: tuple[str, ...] = ()
    """What does not hold here, in sentences."""
    warmth: Warmth = Warmth.COLD
    restarts: int = 0
    clients: int = 1
    created_at: datetime
    updated_at: datetime
    ready_at: datetime | None = None
    ended_at: datetime | None = None
    problem: Problem | None = None
    limits: Limits = Limits()
    enforced: tuple[LimitSupport, ...] = ()
    ttl: float | None = None
    lease: float | None = None
    idle_timeout: float | None = None
    survive: bool = False
    restart: Restart = Restart.NEVER
    share: Share = Share.NONE

    @property
    def headers(self) -> Mapping[str, str]:
        """What a client of its URL has to send."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


class Told:
    """What a handle tells of its instance: `info` is what was last heard."""

    info: InstanceInfo
    hold: str
    """Our share of it, which `release` gives up; empty of one that was only looked up."""

    @property
    def id(self) -> str:
        return self.info.instance_id

    @property
    def url(self) -> str:
        return self.info.url

    @property
    def headers(self) -> Mapping[str, str]:
        """What a client of `url` has to send."""
        return self.info.headers

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.info.server} {self.info.state}>"


class Release(Record, frozen=True, kw_only=True):
    status: Released


class PortInfo(Record, frozen=True, kw_only=True):
    by: str
    line: str = ""


class ServerInfo(Record, frozen=True, kw_only=True):
    """A kind of server. Of its variables the names only."""

    name: str
    installed: bool
    where: str
    source: str
    command: tuple[str, ...]
    transport: Transport
    port: PortInfo
    path: str
    network: Network
    env: tuple[str, ...] = ()
    streams: bool = False
    warm: int = 0
    install: str = ""
