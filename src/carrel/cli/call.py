"""One call of a verb: what was given, the connection to the daemon, and where output goes."""

from __future__ import annotations

from carrel.cli.output import AnswerTable, is_terminal, put, tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from carrel.cli.spec import Verb
    from carrel.client.address import Address
    from carrel.client.link import Link

    Text = Callable[[Any], str] | AnswerTable
    """How an answer is shown to people."""

FAILED, NO_DAEMON, UNSOUND = 1, 6, 8
"""Exit codes that verbs give themselves; those of errors are of their kinds. docs/cli.md says
what each means."""


class VerbCall:
    """What a verb is given; it may ask the daemon and print by it."""

    def __init__(self, verb: Verb, values: dict[str, object]) -> None:
        self._verb = verb
        self._values = values
        self._link: Link | None = None

    def run(self) -> int:
        try:
            return self._run()
        finally:
            if self._link is not None:
                self._link.close()

    def _run(self) -> int:
        """An agent that the daemon does not find may be on the PATH of who calls. Nothing has
        been made or printed when that is refused."""
        try:
            return self._verb.run(self) or 0
        except Exception as error:
            if getattr(error, "code", "") != "frontend_not_installed":
                raise
            missing = getattr(error, "details", {}).get("frontend")
            if not any(one["name"] == missing and one["path"] for one in self.agents()):
                raise
            return self._verb.run(self) or 0

    def agents(self) -> list[dict[str, Any]]:
        """All of them, when the daemon has looked on our PATH too. A daemon on another machine is
        told nothing of ours."""
        from os import environ

        if not self.place.socket:
            return []
        content = {"path": environ.get("PATH", "")}
        return list(self.ask("agents.look", content=content)["frontends"])

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
        return [str(one) for one in value] if isinstance(value, list) else []

    def pairs(self, name: str) -> dict[str, str]:
        value = self._values.get(name)
        return dict(value) if isinstance(value, list) else {}

    def content(self) -> dict[str, Any]:
        """The body of a request: what options with `to` were given. What was not said is left to
        the daemon."""
        found: dict[str, Any] = {}
        for option in self._verb.options:
            value = self._values.get(option.name)
            if not option.to or value in (None, "", []):
                continue
            *above, field = option.to.split(".")
            place = found
            for name in above:
                place = place.setdefault(name, {})
            if option.kind == "flag":
                value = option.value
            place[field] = self.pairs(option.name) if option.kind == "pairs" else value
        return found

    @property
    def json(self) -> bool:
        return self.flag("json")

    # The daemon

    @property
    def place(self) -> Address:
        from carrel.client.address import find_address

        return find_address(data=self.text("data"), url=self.text("url"))

    @property
    def link(self) -> Link:
        if self._link is None:
            from carrel.client.address import starter
            from carrel.client.link import Link

            place = self.place
            self._link = Link(place, start=starter(place, not self.flag("no_start")))
        return self._link

    def ask(self, name: str, *named: str, **options: Any) -> Any:
        """What an operation of the contract answers; see `carrel.client.http.operation`."""
        from carrel.client.http import operation

        return self.link.json(operation(name, *named, **options))

    # Output

    def say(self, text: str) -> None:
        """Prints a line of the result."""
        put(f"{text}\n")

    def note(self, text: str) -> None:
        """Prints a line for who watches, apart from the result."""
        tell(f"{text}\n")

    def note_logout(self) -> None:
        """Says once for a data folder that work ends with the last logout, where it does."""
        import os

        from carrel.daemon import places
        from carrel.linux import systemd

        data = self.place.data
        if not data or os.geteuid() == 0 or not systemd.manages_us() or systemd.lingers():
            return
        try:
            os.close(os.open(places.told_logout(data), os.O_CREAT | os.O_EXCL, 0o600))
        except OSError:
            return
        self.note(
            "What runs in your spaces ends when you log out of this machine; its files stay."
            " To let it go on: loginctl enable-linger"
        )

    def show(self, content: Any) -> None:
        """Prints JSON: indented for people, in one line for programs."""
        import json

        put(json.dumps(content, indent=2 if is_terminal(1) else None) + "\n")

    def answer(self, content: Any, text: Text | None = None) -> None:
        """Prints an answer: all of it with --json, else its text, if it has one."""
        if self.json:
            self.show(content)
        elif text is not None:
            if shown := text(content):
                self.say(shown)
            elif isinstance(text, AnswerTable):
                self.note(text.empty)


def each(call: VerbCall, words: Sequence[str], work: Callable[[str], Any], *, names: bool) -> int:
    """Does one thing to several; each that fails is told. With `names` it prints that of every
    result. The exit code is the first failure's; with one word a failure is just raised."""
    if len(words) == 1:
        results, code = [work(words[0])], 0
    else:
        results, code = _several(call, words, work)
    if call.json:
        call.show(results[0] if len(words) == 1 else results)
    elif names:
        for result in results:
            call.say(result["name"])
    return code


def _several(
    call: VerbCall, words: Sequence[str], work: Callable[[str], Any]
) -> tuple[list[Any], int]:
    from carrel.cli.errors import report
    from carrel.domain.errors import CarrelError

    results: list[Any] = []
    first = 0
    for word in words:
        try:
            results.append(work(word))
        except CarrelError as error:
            code = report(error, call.json)
            first = first or code
    return results, first


def invalid(message: str, hint: str = "") -> Exception:
    """The error of a call that cannot be understood; its exit code is 2."""
    from carrel.domain.errors import MessageInvalid

    return MessageInvalid(message, hint=hint)


def without_empty(values: dict[str, Any]) -> dict[str, Any]:
    """Leaves out what is empty."""
    return {name: value for name, value in values.items() if value}


def text_of(word: str) -> str:
    """TEXT, or @FILE for what stands in a file. `OSError`."""
    if not word.startswith("@"):
        return word
    with open(word[1:], encoding="utf-8") as file:
        return file.read()
