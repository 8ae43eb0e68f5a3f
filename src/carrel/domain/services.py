"""Services of a space: what a project's compose file asks for, and what runs beside `dev`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from carrel.domain.environments import Build
from carrel.domain.plans import DroppedRequest

MOST_SERVICES = 20
"""Of one space: each has a system of its own. Their sandboxes are named by a letter."""


class Condition(StrEnum):
    """What a service waits for in another one."""

    STARTED = "service_started"
    HEALTHY = "service_healthy"
    COMPLETED = "service_completed_successfully"


class RestartPolicy(StrEnum):
    NO = "no"
    ON_FAILURE = "on-failure"
    ALWAYS = "always"
    UNLESS_STOPPED = "unless-stopped"


@dataclass(frozen=True)
class Dependency:
    service: str
    condition: Condition = Condition.STARTED


LEAST_INTERVAL_S = 1.0
"""Of a health check: each is a sandboxed command, of which a space with many services would start
hundreds in a second."""


@dataclass(frozen=True)
class HealthCheck:
    """A command in the service's sandbox, which ends with 0 when the service is healthy."""

    argv: tuple[str, ...]
    interval_s: float = 30.0
    timeout_s: float = 30.0
    retries: int = 3
    """So many failures in a row make it unhealthy."""
    start_period_s: float = 0.0
    """Failures within this time after its start do not count."""

    @property
    def most_s(self) -> float:
        """From its start until it is unhealthy for good."""
        return self.start_period_s + self.retries * self.interval_s + self.timeout_s


class MountKind(StrEnum):
    VOLUME = "volume"
    """A folder of the space, by its name."""
    TREE = "tree"
    """A path of the space's tree."""
    MEMORY = "tmpfs"


@dataclass(frozen=True)
class ServiceMount:
    kind: MountKind
    target: str
    source: str = ""
    """The volume's name, or the path in the tree."""
    read_only: bool = False


@dataclass(frozen=True)
class ServiceSpec:
    """What a compose file says of one service, as far as a space gives it."""

    name: str
    image: str = ""
    build: Build | None = None
    entrypoint: tuple[str, ...] | None = None
    """None: the image's."""
    command: tuple[str, ...] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    folder: str = ""
    """Where its command begins; empty: where the image says."""
    mounts: tuple[ServiceMount, ...] = ()
    depends_on: tuple[Dependency, ...] = ()
    health: HealthCheck | None = None
    own_health: bool = False
    """The file says something of it, if only that there is none; else the image's check is run."""
    restart: RestartPolicy = RestartPolicy.NO
    restarts: int = 0
    """With `on-failure`, so often at most; 0: as often as others."""
    ports: tuple[int, ...] = ()
    """That the file names; nothing is done for them."""
    names: tuple[str, ...] = ()
    """By which it is found in the space, beside its own."""
    stop_signal: str = ""
    stop_grace_s: float = 10.0

    def __hash__(self) -> int:
        return hash((self.name, self.image))


@dataclass(frozen=True)
class StackPlan:
    """The services that a space would have, and why. Text in it is the project's own."""

    services: tuple[ServiceSpec, ...] = ()
    why: str = ""
    files: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of the service that `dev` stands for."""
    dropped: tuple[DroppedRequest, ...] = ()


@dataclass(frozen=True)
class PlannedService:
    """One of a space that is about to be made, whose image is there."""

    spec: ServiceSpec
    image_id: str


class ServicePhase(StrEnum):
    WAITING = "waiting"
    """For those that it depends on."""
    STARTING = "starting"
    """It runs, and was not healthy yet."""
    RUNNING = "running"
    """And is healthy, or nobody can tell."""
    UNHEALTHY = "unhealthy"
    EXITED = "exited"
    RESTARTING = "restarting"
    """It waits to be started again."""
    FAILED = "failed"
    """It was given up."""
    STOPPED = "stopped"
    """Its space is."""


@dataclass(frozen=True)
class ServiceStatus:
    """How one is now."""

    name: str
    state: ServicePhase
    image: str
    health: str = ""
    """healthy, unhealthy or starting; empty without a check."""
    run_id: str = ""
    """Its last run."""
    restarts: int = 0
    ports: tuple[int, ...] = ()
    code: int | None = None
    """Of one that ended."""
    problem: str = ""


@dataclass(frozen=True)
class ServiceView:
    """What the sandbox of a service shows of its space, beside its system and its volumes."""

    tree_at: tuple[tuple[str, bool], ...] = ()
    """Where the tree is, and whether it may be written there."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Places that lead into it: paths below `/workspace`."""
    read_only: bool = False
    """What they lead to cannot be written."""
    memory: tuple[str, ...] = ()
    """Folders that are in memory."""
