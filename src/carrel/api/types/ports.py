"""Ports of spaces, and what runs in spaces."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from carrel.api.types.admin import ScopeText
from carrel.api.types.common import Answer, Body, Moment
from carrel.api.types.runs import RunInfo
from carrel.api.types.spaces import SpaceInfo, UsageInfo
from carrel.domain.ports import MAX_PORT
from carrel.domain.services import ServicePhase


class NewForward(Body, frozen=True, kw_only=True):
    port: Annotated[int, Meta(ge=1, le=MAX_PORT)]
    """Of the space."""
    local: Annotated[int, Meta(ge=0, le=MAX_PORT)] = 0
    """Of the loopback of the daemon's machine; 0: a free one."""


class SpacePort(Answer, frozen=True, kw_only=True):
    """A TCP port on which something in a space listens."""

    port: int
    host: str
    """An address in the space; all zeros stand for every one."""
    pid: int
    """On the daemon's machine; 0: not known."""
    program: str


class ForwardInfo(Answer, frozen=True, kw_only=True):
    """A port of a space that is on the loopback of the daemon's machine."""

    space: str
    port: int
    local: int
    created_at: Moment
    connections: int = 0
    """That are open now."""
    problem: str = ""
    """Why its last connection was reset, if nothing took it in the space."""


class PortList(Answer, frozen=True, kw_only=True):
    space: str
    listening: tuple[SpacePort, ...]
    caution: str
    """How the ports were found, where it may not be all, in a sentence."""
    forwards: tuple[ForwardInfo, ...]


class SshAccessInfo(Answer, frozen=True, kw_only=True):
    """What programs of the daemon's user need to come into spaces by SSH."""

    block: str
    """What a configuration of ssh has to say of the hosts `*.carrel`."""
    config: str
    """A file with that, for `ssh -F`."""
    identity: str
    """The file with the key."""
    known_hosts: str


class SshListenerInfo(Answer, frozen=True, kw_only=True):
    """The port of the daemon's machine by which programs without `ProxyCommand` come in."""

    port: int
    """On the loopback; 0: it is off."""
    host_key: str = ""
    """The public half of its key."""
    problem: str = ""
    """Why it does not listen although it is on."""


class SshListenBody(Body, frozen=True, kw_only=True):
    port: Annotated[int, Meta(ge=0, le=MAX_PORT)] = 0
    """0: one that is free."""


class NewSshKey(Body, frozen=True, kw_only=True):
    key: Annotated[str, Meta(max_length=16_384)]
    """The public half, as in OpenSSH's files: `ssh-ed25519 AAAA… NAME`."""
    name: Annotated[str, Meta(max_length=100)] = ""
    """Empty: what stands after the key."""
    scopes: Annotated[tuple[ScopeText, ...], Meta(min_length=1, max_length=100)]
    """What it opens: `admin` for all spaces, `label:key=value`, `space:<id>`."""


class SshKeyInfo(Answer, frozen=True, kw_only=True):
    id: str
    name: str
    kind: str
    fingerprint: str
    scopes: tuple[str, ...]
    created_at: Moment


class SshKeyList(Answer, frozen=True, kw_only=True):
    keys: tuple[SshKeyInfo, ...]


class SshSessionInfo(Answer, frozen=True, kw_only=True):
    """A connection by SSH into a space."""

    session: str
    place: str
    """agent or dev: in which of its sandboxes."""
    conversation: bool
    """Whether it shows the agent's terminal."""
    client: int
    """The process on the daemon's machine that connected."""
    begun_at: Moment
    key: str = ""
    """The id of the key that opened the listener; empty: it came by the owner's own socket."""
    origin: str = ""
    """Who connected to the listener."""


class ServiceInfo(Answer, frozen=True, kw_only=True):
    """What runs beside a space's commands, by a compose file of its project."""

    name: str
    state: ServicePhase
    image: str
    health: str = ""
    """healthy, unhealthy or starting; empty: it has no check."""
    run: str = ""
    """Its last run, whose output is what it said."""
    restarts: int = 0
    """In a row, because it ended."""
    ports: tuple[int, ...] = ()
    """That its file names."""
    code: int | None = None
    """With which it ended."""
    problem: str = ""


class ServiceList(Answer, frozen=True, kw_only=True):
    space: str
    services: tuple[ServiceInfo, ...]
    """In the order in which they start."""


class PsInfo(Answer, frozen=True, kw_only=True):
    """All that is at work in a space; its agent and its servers are with the space."""

    space: SpaceInfo
    runs: tuple[RunInfo, ...]
    listening: tuple[SpacePort, ...]
    caution: str
    forwards: tuple[ForwardInfo, ...]
    ssh: tuple[SshSessionInfo, ...] = ()
    services: tuple[ServiceInfo, ...] = ()
    usage: UsageInfo | None
    """None of one that does not run."""


class PsList(Answer, frozen=True, kw_only=True):
    spaces: tuple[PsInfo, ...]
