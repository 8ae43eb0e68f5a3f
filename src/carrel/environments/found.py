"""What a rule about containers finds."""

from __future__ import annotations

from dataclasses import dataclass

from carrel.domain.environments import Image, Match, Port, SetupCommand, Variable


@dataclass(frozen=True)
class ContainerFound:
    """`image` is None when the file names none."""

    match: Match
    image: Image | None = None
    setup: tuple[SetupCommand, ...] = ()
    ports: tuple[Port, ...] = ()
    variables: tuple[Variable, ...] = ()
