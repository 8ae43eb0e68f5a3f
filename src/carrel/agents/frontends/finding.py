"""What is told of a frontend that stands on one program."""

from __future__ import annotations

from carrel.agents.locating import Locator, install_command
from carrel.domain.agents import FoundFrontend, FrontendKind, Provider


def found(
    locator: Locator, about: tuple[str, Provider, FrontendKind], program: str
) -> FoundFrontend:
    """`about` is its name, provider and kind. Blocking: the program is asked for its version."""
    name, provider, kind = about
    at = locator.find(name, program)
    version = locator.version(at) if at else ""
    return FoundFrontend(
        name,
        provider,
        kind,
        installed=bool(version),
        version=version,
        path=str(at.path) if at else "",
        install=install_command(name),
        problem="It does not say its version." if at and not version else "",
    )
