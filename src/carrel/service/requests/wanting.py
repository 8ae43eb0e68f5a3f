"""The space that a request wants, and what is told while it is made."""

from __future__ import annotations

import asyncio

from carrel.domain.projects import OnProgress, Progress, Project, ProjectKind
from carrel.domain.requests import Generate, Policy, Request
from carrel.domain.runtimes import Network
from carrel.domain.spaces import Retention, SpaceRequest
from carrel.domain.trees import DIRECT
from carrel.service.requests.book import Book, Live
from carrel.service.requests.parts import RequestParts

LABEL = "carrel.request"
FOREVER = Retention(ttl_s=0.0, idle_s=0.0, keep_s=0.0, discard=True)
"""What becomes of a workspace is decided here, and not by its age."""


def wants_content(asked: Generate) -> bool:
    if asked.content is not None:
        return asked.content
    return asked.keeping.policy is Policy.EPHEMERAL and not asked.workspace_path


def space_request(parts: RequestParts, request: Request) -> SpaceRequest:
    """Blocking. Raises `ProjectError`s for a folder that cannot be worked in."""
    asked = request.asked
    place = ""
    if asked.workspace_path:
        taken = [space.place for space in parts.journal.all() if space.place]
        place = parts.folders.check(asked.workspace_path, taken)
    return SpaceRequest(
        project=asked.project or Project(ProjectKind.EMPTY),
        place=place,
        space_id=request.space_id,
        driver=DIRECT if place else "auto",
        tier=asked.tier or parts.rules.tier,
        limits=asked.limits,
        runtime=asked.runtime,
        network=asked.network or Network.NONE,
        network_asked=asked.network is not None,
        labels={**asked.labels, LABEL: request.key},
        env=asked.env,
        retention=FOREVER,
        description=asked.instructions[:200].replace("\0", ""),
        agent=asked.frontend or parts.rules.frontend,
        transient=True,
    )


def telling(book: Book, live: Live) -> OnProgress:
    """Tells what is being done while a workspace is made. Its listener is called in a worker
    thread, and often."""
    loop = asyncio.get_running_loop()

    def heard(progress: Progress) -> None:
        said = f"{progress.stage}: {progress.done}" + (
            f" of {progress.total}" if progress.total else ""
        )
        if said != live.making:
            live.making = said
            loop.call_soon_threadsafe(book.ring, live.key)

    return heard
