"""The last rule: what a project gets that asks for nothing."""

from __future__ import annotations

from carrel.domain.environments import Image, Match, Rule

IMAGE = "debian:stable"
PROGRAMS = ("sh", "git")
"""What every project needs, whatever it is written in."""

MATCH = Match(Rule.DEFAULT, "", "No file of the project asks for anything.")


def default_image(why: str = "") -> Image:
    return Image(IMAGE, why=why or f"{IMAGE} is the default.")
