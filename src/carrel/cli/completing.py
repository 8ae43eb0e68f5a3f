"""What a shell completes: names of spaces and runs, asked of the daemon if there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from carrel.cli import spec
from carrel.client.link import Link
from carrel.client.places import find_place
from carrel.client.requests import asking, space_path
from carrel.domain.errors import CarrelError

ANSWER_S = 2.0
"""Somebody pressed Tab and waits; no answer is better than a late one."""
MOST = 200

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def completer(what: str) -> Completer:
    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        if what == spec.FILES:
            return _places(incomplete)
        try:
            items = _runs() if what == spec.RUNS else _spaces()
        except CarrelError:
            # Without a daemon there is nothing to complete; pressing Tab starts none.
            return []
        return [item for item in items if str(item.value).startswith(incomplete)]

    return complete


def _ask(path: str, query: list[tuple[str, object]]) -> Any:
    link = Link(find_place(), timeout_s=ANSWER_S)
    try:
        return link.json(asking(path, query))
    finally:
        link.close()


def _spaces() -> list[CompletionItem]:
    spaces = _ask("/v1/spaces", [("limit", MOST)])["spaces"]
    return [CompletionItem(space["name"], help=space["id"]) for space in spaces]


def _runs() -> list[CompletionItem]:
    found = []
    for space in _ask("/v1/spaces", [("limit", MOST), ("state", "running")])["spaces"]:
        for run in _ask(space_path(space["id"], "runs"), [])["runs"]:
            found.append(CompletionItem(run["id"], help=run["display_command"][:40]))
    return found


def _places(incomplete: str) -> list[CompletionItem]:
    """`SPACE:` or a file of this machine."""
    files = [CompletionItem(incomplete, type="file")]
    if ":" in incomplete or "/" in incomplete or incomplete.startswith("."):
        return files
    try:
        spaces = [f"{item.value}:" for item in _spaces()]
    except CarrelError:
        return files
    return [*files, *(CompletionItem(name) for name in spaces if name.startswith(incomplete))]
