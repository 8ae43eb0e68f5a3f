"""Takes a machine out of what was recorded on it."""

from __future__ import annotations

import re
import sys

from tests.agents.recording.programs import ANTHROPIC_KEY, OPENAI_KEY, REPOSITORY, Desk

_UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")


class Scrubber:
    """Puts placeholders for folders, ports, keys and ids. The same id gets the same
    placeholder, in the order of first sight: what belongs together still does."""

    def __init__(self, desk: Desk) -> None:
        root = str(desk.root)
        self._words = {
            desk.url.removeprefix("http://"): "127.0.0.1:1",
            root: "/desk",
            # As Claude Code and Pi name folders after a path.
            root.replace("/", "-").replace(".", "-").replace("_", "-"): "-desk",
            root.removeprefix("/").replace("/", "-"): "desk",
            sys.executable: "/usr/bin/python3",
            str(REPOSITORY): "/repository",
            ANTHROPIC_KEY: "KEY",
            OPENAI_KEY: "KEY",
        }
        self._ids: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        for word, placeholder in self._words.items():
            text = text.replace(word, placeholder)
        return _UUID.sub(self._id, text)

    def _id(self, found: re.Match[str]) -> str:
        placeholder = f"00000000-0000-4000-8000-{len(self._ids) + 1:012}"
        return self._ids.setdefault(found.group(), placeholder)
