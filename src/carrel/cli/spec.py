"""What a verb takes, as data: read by the quick parser (`parser`) and by click (`program`).

Neither the data nor the verbs need click, so that a plain command line costs no more than it
must.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from carrel.cli.call import Text, VerbCall

    Run = Callable[[VerbCall], int | None]
    Kind = Literal[
        "flag", "text", "many", "pairs", "choice", "choices", "size", "seconds", "number", "whole"
    ]
    """`many` and `choices` may be given several times, and `pairs`, which are KEY=VALUE."""
    Completes = Literal["", "spaces", "runs", "files"]

_KINDS: dict[str, Kind] = {"TIME": "seconds", "SIZE": "size", "K=V": "pairs", "N": "whole"}


class Option:
    """`usage` is as the help has it: "-l, --label K=V". What stands there for the value says what
    it is: nothing for a flag, words with | between them for a choice, TIME, SIZE, K=V or N; else
    a text. With ... at its end it may be given several times, as K=V may.

    `to` is the field of the request that its value goes to, as in "limits.cpus": see
    `VerbCall.content`. `value` is what a flag means there.
    """

    __slots__ = ("choices", "flags", "help", "kind", "metavar", "name", "to", "value")

    def __init__(
        self, usage: str, help: str, *, kind: Kind | None = None, to: str = "", value: object = True
    ) -> None:
        words = usage.replace(",", "").split()
        self.flags = [word for word in words if word.startswith("-")]
        placeholder = words[-1] if len(words) > len(self.flags) else ""
        self.metavar = placeholder.removesuffix("...")
        self.choices = self.metavar.split("|") if self.metavar.islower() else []
        self.kind = kind or self._kind(several=placeholder.endswith("..."))
        self.help = help
        self.to = to
        self.value = value
        self.name = max(self.flags, key=len).lstrip("-").replace("-", "_")

    def _kind(self, *, several: bool) -> Kind:
        if self.choices:
            return "choices" if several else "choice"
        if several:
            return "many"
        return _KINDS.get(self.metavar, "text") if self.metavar else "flag"

    @property
    def repeats(self) -> bool:
        return self.kind in ("many", "pairs", "choices")


class Argument:
    """`many` takes all that is left, at least one when it is `required`."""

    __slots__ = ("completes", "many", "metavar", "name", "required")

    def __init__(
        self, name: str, *, required: bool = True, many: bool = False, completes: Completes = ""
    ) -> None:
        self.name = name
        self.metavar = name.upper() + ("..." if many else "")
        self.required = required
        self.many = many
        self.completes = completes


SPACE = Argument("space", completes="spaces")
SOME_SPACES = Argument("space", many=True, completes="spaces")
RUN = Argument("run", completes="runs")
JSON = Option("--json", "Print JSON instead of text.")
NO_START = Option("--no-start", "Do not start the daemon when it does not run.")


class Verb:
    """One verb of the program.

    A plain verb is a row: it calls the operation `ask` with its arguments, and prints the answer
    as `text` has it. Any other is a function of the call, decorated with its `Verb`; it gives the
    exit code, or nothing for 0. Its docstring is the help. The first paragraph of the help is the
    line in the list of verbs.
    """

    __slots__ = ("arguments", "ask", "help", "options", "run", "text")

    def __init__(
        self,
        *takes: Argument | Option,
        help: str = "",
        ask: str = "",
        text: Text | None = None,
    ) -> None:
        self.arguments = [one for one in takes if isinstance(one, Argument)]
        self.options = [one for one in takes if isinstance(one, Option)] + [JSON, NO_START]
        self.help = help
        self.ask = ask
        self.text = text
        self.run: Run = self._call_operation

    def __call__(self, run: Run) -> Verb:
        self.run = run
        self.help = run.__doc__ or ""
        return self

    @property
    def summary(self) -> str:
        return self.help.partition("\n\n")[0]

    def _call_operation(self, call: VerbCall) -> None:
        named = (call.text(argument.name) for argument in self.arguments)
        call.answer(call.ask(self.ask, *named), self.text)
