"""The settings of apt: its configuration, and the sources of packages.

Both are parsed as apt does, and given as `package_settings` has it: what is passed of them is
decided there. Sources become stanzas (deb822), whichever of the two forms they had.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

_TOKEN = re.compile(
    r"""(?:[ \t\r\n]|//[^\n]*|\#[^\n]*|/\*.*?\*/)*(?:"([^"\n]*)"|([{};])|([^\s{};"]+))""",
    re.DOTALL,
)
_NAME = re.compile(r"[\w:.*-]+ ")
_OPTIONS = {"arch": "architectures", "lang": "languages", "target": "targets"}
"""What an option of a line is called in a stanza; the others have the same name."""
_LINE = re.compile(r"(deb|deb-src)\s+(?:\[([^\]]*)\]\s*)?(\S+)\s+(\S+)\s*([^#]*)")
NEEDED = ("types", "uris", "suites")
"""A stanza without one of them is no source, and apt refuses all of them then."""


def parse_configuration(text: str) -> dict[str, Any]:
    """By whole name, in small letters: `acquire::http::proxy`. Raises ValueError."""
    found: dict[str, Any] = {}
    above: list[str] = []
    words: list[str] = []
    for match in _TOKEN.finditer(text):
        quoted, mark, word = match.groups()
        if mark is None:
            words.append(word if quoted is None else quoted)
            continue
        if mark == ";" and len(words) == 2:
            found["::".join((*above, words[0])).lower()] = words[1]
        elif mark == "{":
            above.append(" ".join(words))
        elif mark == "}" and not above:
            raise ValueError("a bracket too many")
        elif mark == "}":
            above.pop()
        words = []
    return found


def write_configuration(settings: dict[str, Any]) -> str:
    """Without what would end a word where it stands."""
    lines = {f"{name} ": f'"{value}";\n' for name, value in settings.items()}
    return "".join(
        name + value
        for name, value in lines.items()
        if _NAME.fullmatch(name) and value.count('"') == 2
    )


def parse_sources(text: str) -> dict[str, Any]:
    """Stanzas by a digest of what they say, in either form."""
    found = {}
    for stanza in _stanzas(text):
        if stanza.get("enabled", "yes").lower() not in ("no", "false", "0"):
            digest = hashlib.blake2b(repr(stanza).encode(), digest_size=8).hexdigest()
            keys = stanza.get("signed-by", "")
            # A key may be there itself, in lines of which each is kept as it is.
            kept = keys.split("\n") if "\n" in keys else keys
            found[digest] = {**stanza, "signed-by": kept} if keys else stanza
    return found


def _stanzas(text: str) -> Iterator[dict[str, str]]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    if any(_LINE.match(line.strip()) for line in lines):
        yield from map(_of_line, filter(None, (_LINE.match(line.strip()) for line in lines)))
        return
    for part in re.split(r"\n[ \t]*\n", "\n".join(lines)):
        yield _stanza(part.splitlines())


def _of_line(line: re.Match[str]) -> dict[str, str]:
    kind, options, uri, suite, components = line.groups(default="")
    pairs = (one.partition("=") for one in options.split())
    more = {_OPTIONS.get(key, key): value.replace(",", " ") for key, _, value in pairs}
    parts = {"components": components.strip()} if components.strip() else {}
    return {"types": kind, "uris": uri, "suites": suite, **parts, **more}


def _stanza(lines: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    key = ""
    for line in lines:
        if line[:1] in (" ", "\t") and key:
            found[key] = f"{found[key]}\n{line.strip()}" if found[key] else f"\n{line.strip()}"
        elif ":" in line:
            key, _, value = line.partition(":")
            key = key.strip().lower()
            found[key] = value.strip()
    return {
        one: value if one == "signed-by" else " ".join(value.split())
        for one, value in found.items()
    }


def write_sources(settings: dict[str, Any]) -> str:
    whole = [one for one in settings.values() if all(one.get(key) for key in NEEDED)]
    return "\n".join(
        "".join(f"{key}: {_field(value)}\n" for key, value in one.items()) for one in whole
    )


def _field(value: object) -> str:
    return "\n ".join(map(str, value)) if isinstance(value, list) else str(value)
