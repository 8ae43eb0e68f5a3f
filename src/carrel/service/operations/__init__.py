"""What answers the operations of the contract: one attribute for each group of them.

A method takes the caller, what the path names, the query and the body, as far as the row in
`carrel.api.routes` has them, and returns the answer's type. It is the only place where records
become answers.
"""

from __future__ import annotations

from dataclasses import dataclass

from carrel.service.operations.admin import BaseOperations, CleanUpOperations, DaemonOperations
from carrel.service.operations.agents import (
    AgentOperations,
    ContextOperations,
    CredentialOperations,
    InboxOperations,
    InvocationOperations,
    KitOperations,
    TrustOperations,
    TurnOperations,
)
from carrel.service.operations.checkpoints import CheckpointOperations
from carrel.service.operations.comments import CommentOperations
from carrel.service.operations.files import FileOperations
from carrel.service.operations.images import ImageOperations
from carrel.service.operations.instances import InstanceOperations, ServerOperations
from carrel.service.operations.landings import LandingOperations, QueueOperations
from carrel.service.operations.ports import (
    PortOperations,
    PsOperations,
    ServiceOperations,
    SshKeyOperations,
    SshOperations,
)
from carrel.service.operations.races import RaceOperations
from carrel.service.operations.requests import RequestOperations
from carrel.service.operations.review import ReviewOperations
from carrel.service.operations.runs import RunOperations
from carrel.service.operations.spaces import SpaceOperations, TrashOperations
from carrel.service.tokens import Tokens


@dataclass(frozen=True)
class Operations:
    spaces: SpaceOperations
    trash: TrashOperations
    review: ReviewOperations
    checkpoints: CheckpointOperations
    tokens: Tokens
    bases: BaseOperations
    images: ImageOperations
    cleanup: CleanUpOperations
    daemon: DaemonOperations
    turns: TurnOperations
    trust: TrustOperations
    context: ContextOperations
    agents: AgentOperations
    invocations: InvocationOperations
    kits: KitOperations
    credentials: CredentialOperations
    inbox: InboxOperations
    runs: RunOperations
    files: FileOperations
    instances: InstanceOperations
    servers: ServerOperations
    landings: LandingOperations
    comments: CommentOperations
    queue: QueueOperations
    races: RaceOperations
    ports: PortOperations
    ps: PsOperations
    ssh: SshOperations
    ssh_keys: SshKeyOperations
    services: ServiceOperations
    requests: RequestOperations
