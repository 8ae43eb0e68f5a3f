"""JSON with comments and trailing commas, as devcontainer.json is written.

The comments and commas are blanked out, and Python's own parser reads the rest, so that it
is as strict as JSON otherwise and the lines in its complaints are those of the file. The
libraries there are read the wider JSON5, a hundred times slower.
"""

from __future__ import annotations

import json
import re
from typing import NoReturn

from carrel.environments.malformed import Malformed

# Every alternative matches whatever follows its first character, so no input makes it look
# at a character twice. What is not closed is left for the parser to complain about.
_TOKEN = re.compile(
    r"""
      (?P<string> "(?:[^"\\\n]|\\[^\n])*"? )
    | (?P<comment> //[^\n]* | /\*(?s:.*?)(?:\*/|\Z) )
    | (?P<space> [ \t\r\n]+ )
    | (?P<comma> , )
    | (?P<close> [}\]] )
    | (?P<other> [^"/ \t\r\n,}\]]+ | / )
    """,
    re.VERBOSE,
)
_VISIBLE = re.compile(r"[^\r\n]")


def parse_jsonc(text: str) -> object:
    """Raises `Malformed`."""
    return parse_json(_blanked(text))


def parse_json(text: str) -> object:
    """Raises `Malformed`, also for what Python reads beyond JSON (`NaN`), and for strings
    that cannot be written as UTF-8 again (half a surrogate pair)."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
        json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise Malformed(f"It is not valid JSON: {error.msg}.", error.lineno) from None
    except UnicodeEncodeError:
        raise Malformed("It is not valid JSON: an escape is half a character.") from None
    except RecursionError:
        raise Malformed("It is nested too deeply.") from None
    except ValueError as error:
        raise Malformed(f"It is not valid JSON: {error}") from None
    return value


def _no_constant(name: str) -> NoReturn:
    raise Malformed(f"It is not valid JSON: {name} is not a number.")


def _blanked(text: str) -> str:
    """Of the same length, with the lines where they were."""
    pieces: list[str] = []
    before = ""  # the last character that counts
    comma: int | None = None  # the place of a comma after a value, if nothing followed yet
    for match in _TOKEN.finditer(text):
        token, kind = match.group(), match.lastgroup
        if kind == "comment":
            if token.startswith("/*") and (len(token) < 4 or not token.endswith("*/")):
                line = text.count("\n", 0, match.start()) + 1
                raise Malformed("It is not valid JSON: a comment does not end.", line)
            token = _VISIBLE.sub(" ", token)
        elif kind != "space":
            if kind == "close" and comma is not None:
                pieces[comma] = " "
            comma = len(pieces) if kind == "comma" and before not in ("", *"[{,:") else None
            before = token[-1]
        pieces.append(token)
    return "".join(pieces)
