"""What a verb takes, as data: read by the quick parser (`parsing`) and by click (`program`).

A verb's file has `VERB`, which says what it takes, and `run(call)`, which does it and gives
the exit code. Neither needs click, so that a plain command line costs no more than it must.
"""

from __future__ import annotations

FLAG = "flag"
TEXT = "text"
MANY = "many"
"""May be given several times."""
PAIRS = "pairs"
"""KEY=VALUE, several times."""
CHOICE = "choice"
CHOICES = "choices"
"""One of some words, several times."""
SIZE = "size"
SECONDS = "seconds"
NUMBER = "number"
WHOLE = "whole"

SPACES = "spaces"
RUNS = "runs"
FILES = "files"
"""What a shell completes."""


class Option:
    __slots__ = ("choices", "completes", "flags", "help", "kind", "metavar", "name")

    def __init__(
        self,
        *flags: str,
        kind: str = FLAG,
        help: str,
        metavar: str = "",
        choices: tuple[str, ...] = (),
        completes: str = "",
    ) -> None:
        self.flags = flags
        self.kind = kind
        self.help = help
        self.metavar = metavar
        self.choices = choices
        self.completes = completes
        self.name = max(flags, key=len).lstrip("-").replace("-", "_")

    @property
    def repeats(self) -> bool:
        return self.kind in (MANY, PAIRS, CHOICES)


class Argument:
    """`many` takes all that is left, at least one when it is `required`."""

    __slots__ = ("completes", "many", "metavar", "name", "required")

    def __init__(
        self, name: str, *, required: bool = True, many: bool = False, completes: str = ""
    ) -> None:
        self.name = name
        self.metavar = name.upper() + ("..." if many else "")
        self.required = required
        self.many = many
        self.completes = completes


JSON = Option("--json", help="Print JSON instead of text.")
NO_START = Option("--no-start", help="Do not start the daemon when it does not run.")


class Verb:
    """`summary` is one line of the list of verbs; `details` are for `--help`."""

    __slots__ = ("arguments", "details", "options", "summary")

    def __init__(
        self,
        summary: str,
        *arguments: Argument,
        details: str = "",
        options: tuple[Option, ...] = (),
    ) -> None:
        self.summary = summary
        self.details = details
        self.arguments = arguments
        self.options = (*options, JSON, NO_START)


SPACE = Argument("space", completes=SPACES)
RUN = Argument("run", completes=RUNS)
