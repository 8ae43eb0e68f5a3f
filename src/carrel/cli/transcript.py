"""A turn of an agent as a person reads it: what it said, what it did, how it ended.

All frontends tell the same events, so there is one renderer. What an agent says is hostile: it goes
out without what steers a terminal, and only as much as a person reads, unless all is wanted.
"""

from __future__ import annotations

import os

from carrel.cli.output import ELLIPSIS, clean, cut, is_terminal, put, tell, terminal_width, width_of
from carrel.cli.spec import Option
from carrel.cli.values import seconds_of, time_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from carrel.cli.call import VerbCall

TRANSCRIPT_OPTIONS = (
    Option("--full", "Show all output and all thoughts, not only the first lines."),
    Option("--color auto|always|never", "Use colours (auto: in a terminal)."),
)
"""Options of every verb that shows a transcript."""
FOLDED = 4
"""Lines of a tool's output: enough to see how it went."""
FOLDED_MESSAGE = 200
"""Lines of a message: longer than any that is meant to be read."""
MOST_LETTERS = 64 << 10
"""Of one text; the log may have megabytes."""
MOST_IN_LINE = 2000
"""Letters of one line: any number of them may stand in no column at all."""
MOST_SUBJECT = 300
"""Letters of what a tool is called on, where no terminal has a width."""
MOST_NAME = 80
MOST_CALLS = 1000
"""Calls whose results are waited for; what has more is no agent."""
ASKING = 30
"""Columns that are left for what stands around a call in its line."""
NARROW = 40
"""A terminal that is narrower is written to as if it were so wide."""

_DIM, _BOLD, _RED, _GREEN, _YELLOW, _CYAN = "2", "1", "31", "32", "33", "36"
_SUBJECTS = (
    *("command", "cmd", "pattern", "query", "file_path", "path", "notebook_path", "url"),
    *("question", "skill", "description", "prompt", "message", "name"),
)
"""The fields of a tool's input that say what it is called on, in this order."""
_SHELLS = {f"{at}{name}" for at in ("", "/bin/", "/usr/bin/") for name in ("sh", "bash", "zsh")}
"""A program elsewhere may have such a name and be another."""
_SPACES = dict.fromkeys((0x00A0, 0x2007, 0x202F, *range(0x2000, 0x2007), 0x2008, 0x2009), " ")
_JOINERS = ("\u200c", "\u200d")
"""They belong to letters and emoji, and steer nothing."""


# Text of an agent


def harmless(text: str) -> str:
    """The text without anything that steers a terminal or turns its letters around; its lines and
    tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    text = text.replace("\r\n", "\n").translate(_SPACES)
    return "".join(one if one in "\n\t" or one in _JOINERS else clean(one) for one in text)


def first_line(text: str) -> str:
    """The first line that says something, for a place that has only one."""
    start = text[:MOST_LETTERS].strip().split("\n", 1)[0]
    return harmless(start[:MOST_IN_LINE]).replace("\t", " ").strip()


def subject_of(given: object) -> str:
    """What a tool is called on, in a line: its command, its path, its pattern, …"""
    if isinstance(given, dict):
        given = _subject_in(given)
    if isinstance(given, str):
        return _one_line(_command(given))
    return "" if given in (None, {}, []) else _one_line(_json(given))


def call_text(name: object, given: object) -> str:
    """A call in a line: `Bash(make test)`."""
    shown = harmless(str(name or "tool")[:MOST_NAME]).replace("\n", " ")
    if shown.startswith("mcp__"):
        shown = shown.removeprefix("mcp__").replace("__", ".", 1)
    subject = subject_of(given)
    return f"{shown}({subject})" if subject else shown


def _subject_in(given: dict[str, Any]) -> object:
    if isinstance(changes := given.get("changes"), list):
        return ", ".join(str(one.get("path")) for one in changes if isinstance(one, dict))
    for name in _SUBJECTS:
        value = given.get(name)
        if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
            import shlex

            return shlex.join(value)
        if isinstance(value, str) and value.strip():
            where = given.get("path") if name in ("pattern", "query") else None
            return f"{value} in {where}" if isinstance(where, str) and where else value
    return given


def _command(text: str) -> str:
    """A command without the shell that an agent wraps around each."""
    program, _, rest = text.partition(" ")
    if program not in _SHELLS or not rest.startswith(("-c ", "-lc ")):
        return text
    import shlex

    try:
        words = shlex.split(text)
    except ValueError:
        return text
    return words[2] if len(words) == 3 else text


def _one_line(text: str) -> str:
    start = text[:MOST_LETTERS].strip()
    first, _, rest = start.partition("\n")
    more = f" … +{rest.count(chr(10)) + 1} lines" if rest else ""
    return harmless(first[:MOST_IN_LINE]).replace("\t", " ") + more


def _json(value: object) -> str:
    import json

    return json.dumps(value, ensure_ascii=False, default=str)


def wrapped(line: str, width: int) -> Iterator[str]:
    """The line in parts of at most `width` columns, broken at spaces where there are some; parts
    after the first are as far in as the first."""
    inset = line[: len(line) - len(line.lstrip(" "))][: width // 2]
    while width_of(line) > width:
        end = len(cut(line, width + 1)) - 1
        space = line.rfind(" ", len(inset) + 1, end + 1)
        at = space if space > 0 else max(1, end)
        yield line[:at].rstrip()
        line = inset + line[at:].lstrip(" ")
        if not line.strip():
            return
    yield line


# Facts of a turn


def ending_of(turn: Mapping[str, Any]) -> str:
    """How it ended, in a word: `complete`, the code of its error, or `running`."""
    error = (turn["result"] or {}).get("error")
    return str(error["code"] if error else turn["state"])


def duration_of(turn: Mapping[str, Any]) -> str:
    """How long it took, or has taken so far."""
    if not turn["ended_at"]:
        from carrel.cli.values import age_of

        return age_of(turn["created_at"])
    return time_text(seconds_of(turn["ended_at"]) - seconds_of(turn["created_at"]))


def cost_text(usage: Mapping[str, Any]) -> str:
    cost = usage["cost_usd"]
    return "" if not cost else f"${cost:.2f}" if cost >= 0.995 else f"${cost:.4f}"


def _facts(turn: Mapping[str, Any]) -> str:
    usage, words = turn["usage"], [duration_of(turn)]
    if usage["input_tokens"] or usage["output_tokens"]:
        cached = f" ({usage['cached_tokens']:,} cached)" if usage["cached_tokens"] else ""
        words.append(f"{usage['input_tokens']:,} tokens in{cached}, {usage['output_tokens']:,} out")
    if cost := cost_text(usage):
        words.append(cost)
    return " · ".join(words)


# The renderer


class Transcript:
    """Writes a turn as its events come: to standard output, or to standard error for who waits for
    the result on standard output. `live` says that questions can still be answered, `space` is
    how the reader calls it."""

    def __init__(
        self, call: VerbCall, space: str, *, to_error: bool = False, live: bool = False
    ) -> None:
        descriptor = 2 if to_error else 1
        width = terminal_width(descriptor)
        self._width = None if width is None else max(NARROW, width)
        self._colour = _coloured(call.text("color"), descriptor)
        self._full = call.flag("full")
        self._put = tell if to_error else put
        self._space = space
        self._live = live
        self._begun = False
        self._calls: dict[str, str] = {}
        self._newest = ""
        """The call that the last line is of."""
        self._said = ""
        self._problem = ""
        # Apart from the result, a message is written when something follows it: the last one is
        # the result. Where both go to the same place, all are written at once.
        self._holds_back = to_error and not _same_place()
        self._held: str | None = None
        self._shows: dict[str, Callable[[dict[str, Any]], None]] = {
            "message": self._message,
            "tool_call": self._tool_call,
            "tool_result": self._tool_result,
            "permission": self._permission,
            "log": self._log,
        }

    def hear(self, event: Mapping[str, Any]) -> None:
        """Takes one event as the hub has it."""
        told, kind = event["payload"], str(event["type"]).removeprefix("agent.")
        payload = told.get("payload")
        if not self._begun and told.get("seq") != 1:
            self._line("  … what came before is no longer kept", _DIM)
        self._begun = True
        if kind == "state" and isinstance(payload, dict) and "activity" in payload:
            self._line(self._fitted(f"· {first_line(str(payload['activity']))}"), _DIM)
        elif kind in self._shows and isinstance(payload, dict):
            self.let_go()
            self._shows[kind](payload)

    def settle(self, result: str) -> bool:
        """The turn has ended with this result, which is its last message. True: it was not
        written, and is for the caller to write."""
        if self._held != result:
            self.let_go()
        self._held = None
        return bool(result) and (self._holds_back or self._said != result)

    def prompt(self, turn: Mapping[str, Any]) -> None:
        if turn["prompt"]:
            self._block("> ", turn["prompt"], style=_BOLD)

    def outcome(self, turn: Mapping[str, Any]) -> None:
        """Writes how it ended, or that it has not."""
        self.let_go()
        if turn["state"] == "running":
            for one in turn["permissions"]:
                self._ask(one, answerable=True, told=self._begun)
            self._line(f"… at work for {duration_of(turn)}: carrel logs -f {self._space}", _DIM)
            return
        result = turn["result"] or {}
        if not self._begun:
            self._line("  What it did is no longer kept; this is how it ended.", _DIM)
            self._block("● ", result.get("final_output") or "")
        if result.get("success"):
            self._line(f"✔ {_facts(turn)}", _GREEN)
            return
        error = result.get("error") or {"code": "agent_crashed", "message": "Nobody knows why."}
        known = error["message"] == self._problem
        said = f"({error['code']})" if known else f"{error['message']} ({error['code']})"
        self._line(f"✘ {_facts(turn)}", _RED)
        self._block("  ", said, style=_RED)

    # Events, by the names of their types

    def _message(self, payload: dict[str, Any]) -> None:
        self._held = str(payload.get("text", ""))
        if not self._holds_back:
            self.let_go()

    def let_go(self) -> None:
        """Writes the message that is held back, if one is."""
        if self._held is not None:
            self._block("● ", self._held)
            self._said, self._held = self._held, None

    def _tool_call(self, payload: dict[str, Any]) -> None:
        number, text = _number(payload), self._called(payload)
        if len(self._calls) < MOST_CALLS:
            self._calls[number] = text
        self._line(f"▸ {self._paint(text, _CYAN)}")
        self._newest = number

    def _called(self, payload: Mapping[str, Any]) -> str:
        text = call_text(payload.get("name"), payload.get("input"))
        return cut(text, MOST_SUBJECT if self._width is None else self._width - ASKING)

    def _tool_result(self, payload: dict[str, Any]) -> None:
        number = _number(payload)
        call = self._calls.pop(number, "")
        if number != self._newest and call:
            self._line(f"▸ {call}", _DIM)
        output = str(payload.get("output") or "").strip("\n") or "(no output)"
        failed = payload.get("is_error") is True
        mark, style = ("  ⎿ ✘ ", _RED) if failed else ("  ⎿ ", _DIM)
        self._block(mark, output, most=FOLDED, style=style, chop=True)

    def _permission(self, payload: dict[str, Any]) -> None:
        decision = payload.get("decision")
        if decision is None:
            self._ask(payload, answerable=self._live)
            return
        allowed, reason = decision == "allow", first_line(str(payload.get("reason") or ""))
        words = "  ⎿ allowed" if allowed else f"  ⎿ denied{f': {reason}' if reason else ''}"
        if _number(payload) != self._newest:
            self._line(f"▸ {self._called(payload)}", _DIM)
        self._newest = _number(payload)
        self._line(self._fitted(words), _GREEN if allowed else _RED, keeps=True)

    def _ask(self, asked: Mapping[str, Any], *, answerable: bool, told: bool = False) -> None:
        number = _number(asked)
        if number != self._newest:
            self._line(f"? {self._called(asked)}: it asks for permission.", _YELLOW)
        elif not told:
            self._line("  ? It asks for permission.", _YELLOW)
        if answerable:
            import shlex

            words = shlex.join(("carrel", "permit", self._space, number))
            self._line(f"    {clean(words)} [--deny]", _YELLOW)
        self._newest = number

    def _log(self, payload: dict[str, Any]) -> None:
        kind, text = payload.get("kind"), str(payload.get("text") or "")
        if "raw" in payload:
            if self._full:
                raw = payload["raw"]
                self._block("· ", raw if isinstance(raw, str) else _json(raw), style=_DIM)
        elif kind == "thinking":
            self._block("✻ ", text, most=2, style=_DIM, chop=True)
        elif kind == "retry":
            self._block("↻ ", text, most=1, style=_YELLOW, chop=True)
        elif kind == "error":
            if text != self._problem:
                self._block("! ", text, most=FOLDED, style=_RED)
            self._problem = text
        elif text:
            self._block("· ", text, most=2, style=_DIM, chop=True)

    # Lines

    def _block(
        self,
        mark: str,
        text: str,
        *,
        most: int = FOLDED_MESSAGE,
        style: str = "",
        chop: bool = False,
    ) -> None:
        """Writes a text behind its mark, folded. `chop`: its lines are cut, not wrapped."""
        if not text.strip():
            return
        lines, more = self._lines(text.strip("\n"), len(mark), most, chop=chop)
        indent = " " * len(mark)
        for at, line in enumerate(lines):
            self._line(f"{indent if at else mark}{line}".rstrip(), style)
        if more:
            self._line(f"{indent}{more}", _DIM)

    def _lines(self, text: str, inset: int, most: int, *, chop: bool) -> tuple[list[str], str]:
        """What is shown of a text, and how much is not."""
        if self._full:
            found = harmless(text).expandtabs(4).split("\n")
            return found, ""
        known = text[:MOST_LETTERS]
        lines = harmless(known).expandtabs(4).split("\n")
        over = len(lines) - most
        more = f"… +{over} {'line' if over == 1 else 'lines'}" if over > 0 else ""
        if len(text) > len(known):
            more = f"{more or '…'} +{len(text) - len(known):,} letters"
        return [part for line in lines[:most] for part in self._parts(line, inset, chop)], more

    def _parts(self, line: str, inset: int, chop: bool) -> list[str]:
        if len(line) > MOST_IN_LINE:
            line = line[:MOST_IN_LINE] + ELLIPSIS
        if self._width is None:
            return [line]
        width = self._width - inset
        return [cut(line, width)] if chop else [*wrapped(line, width)]

    def _fitted(self, line: str) -> str:
        return cut(line, MOST_IN_LINE if self._width is None else self._width)

    def _paint(self, text: str, style: str) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if self._colour and style else text

    def _line(self, text: str, style: str = "", *, keeps: bool = False) -> None:
        if not keeps:
            self._newest = ""
        self._put(f"{self._paint(text, style)}\n")


def _number(payload: Mapping[str, Any]) -> str:
    """The id of a call or a question."""
    return str(payload.get("id", ""))[:MOST_SUBJECT]


def _coloured(wanted: str, descriptor: int) -> bool:
    if wanted in ("always", "never"):
        return wanted == "always"
    dumb = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return is_terminal(descriptor) and not dumb


def _same_place() -> bool:
    """Standard output and standard error are one terminal, or one file."""
    try:
        return os.path.samestat(os.fstat(1), os.fstat(2))
    except OSError:
        return False
