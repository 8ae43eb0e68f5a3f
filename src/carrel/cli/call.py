"""One call of a verb: what was given, the way to the daemon, and where output goes."""

from __future__ import annotations

from carrel.cli.output import is_terminal, put, tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from carrel.client.link import Link
    from carrel.client.places import Place


class Call:
    def __init__(self, verb: Callable[[Call], int], values: dict[str, object]) -> None:
        self._verb = verb
        self._values = values
        self._link: Link | None = None

    def run(self) -> int:
        try:
            return self._verb(self)
        finally:
            if self._link is not None:
                self._link.close()

    # What was given

    def flag(self, name: str) -> bool:
        return bool(self._values.get(name))

    def text(self, name: str) -> str:
        value = self._values.get(name)
        return value if isinstance(value, str) else ""

    def number(self, name: str) -> float | None:
        value = self._values.get(name)
        return value if isinstance(value, int | float) else None

    def whole(self, name: str) -> int | None:
        value = self._values.get(name)
        return value if isinstance(value, int) else None

    def texts(self, name: str) -> list[str]:
        value = self._values.get(name)
        return [str(one) for one in value] if isinstance(value, list | tuple) else []

    def pairs(self, name: str) -> dict[str, str]:
        value = self._values.get(name)
        return dict(value) if isinstance(value, list | tuple) else {}

    @property
    def json(self) -> bool:
        return self.flag("json")

    # The daemon

    @property
    def place(self) -> Place:
        from carrel.client.places import find_place

        return find_place(data=self.text("data"), url=self.text("url"))

    @property
    def link(self) -> Link:
        if self._link is None:
            from carrel.client.link import Link
            from carrel.client.starting import starter

            place = self.place
            self._link = Link(place, start=starter(place, not self.flag("no_start")))
        return self._link

    # Output

    def say(self, text: str) -> None:
        """A line of the result."""
        put(f"{text}\n")

    def note(self, text: str) -> None:
        """A line for who watches, apart from the result."""
        tell(f"{text}\n")

    def show(self, content: Any) -> None:
        """As JSON: indented for people, in one line for programs."""
        import json

        put(json.dumps(content, indent=2 if is_terminal(1) else None) + "\n")
