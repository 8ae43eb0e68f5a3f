"""Just enough of git's configuration syntax to read values and to leave lines out.

Pure: the repositories that this is used on may be hostile, and git would obey what it
reads. Whatever is not understood is kept as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_HEADER = re.compile(rb'[ \t\r\n]*\[[ \t]*([A-Za-z0-9.-]+)(?:[ \t]+"((?:[^"\\\n]|\\.)*)")?[ \t]*\]')
_VALUE = rb'(?:[^"\\\n#;]|\\\r?\n|\\[^\r\n]|"(?:[^"\\\n]|\\\r?\n|\\[^\r\n])*")*'
_VARIABLE = re.compile(
    rb"[ \t\r\n]*([A-Za-z][A-Za-z0-9-]*)[ \t]*(?:=(" + _VALUE + rb"))?(?:[#;][^\n]*)?(?:\n|\Z)"
)
_REMARK = re.compile(rb"[ \t\r\n]*[#;][^\n]*(?:\n|\Z)")
_MARK = b"\xef\xbb\xbf"
MAX_ITEMS = 50_000
"""More than any person's repository has; the rest stays one piece that nobody looks into."""
_ODD = re.compile(rb'["\\\s]')
"""In what is more than a word."""
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"b": b"\b"}


@dataclass(frozen=True)
class ConfigItem:
    """A piece of the file: a header, a remark, or a variable. `name` is empty but for
    variables, and then `section.key` or `section.subsection.key`."""

    raw: bytes
    name: str = ""
    value: bytes = b""


def parse(data: bytes) -> list[ConfigItem]:
    """All pieces; their `raw` joined is `data` again."""
    items: list[ConfigItem] = []
    section, at = "", 0
    if data.startswith(_MARK):
        items.append(ConfigItem(_MARK))
        at = len(_MARK)
    while at < len(data):
        if len(items) >= MAX_ITEMS:
            items.append(ConfigItem(data[at:]))
            break
        if found := _HEADER.match(data, at):
            section = _section(found)
            items.append(ConfigItem(found[0]))
        elif found := _REMARK.match(data, at):
            items.append(ConfigItem(found[0]))
        elif section and (found := _VARIABLE.match(data, at)):
            key = found[1].decode().lower()
            value = b"true" if found[2] is None else _unquote(found[2])
            items.append(ConfigItem(found[0], f"{section}.{key}", value))
        else:
            items.append(ConfigItem(data[at:]))
            break
        at = found.end()
    return items


def last(items: Iterable[ConfigItem], name: str) -> bytes | None:
    """The value that counts."""
    values = [item.value for item in items if item.name == name]
    return values[-1] if values else None


def is_true(value: bytes | None) -> bool:
    return value is not None and value.lower() in (b"true", b"yes", b"on", b"1")


def without(items: Iterable[ConfigItem], unwanted: Callable[[str], bool]) -> bytes:
    """The file without the variables whose name is unwanted."""
    kept = bytearray()
    for item in items:
        if not (item.name and unwanted(item.name)):
            kept += item.raw
        elif not kept.endswith(b"\n"):
            kept += b"\n"  # the variable stood on its section's line
    if kept and not kept.endswith(b"\n"):
        kept += b"\n"
    return bytes(kept)


def quote(value: bytes) -> bytes:
    """A value as it is written."""
    escaped = value.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
    return b'"' + escaped.replace(b"\t", b"\\t") + b'"'


def _section(found: re.Match[bytes]) -> str:
    name = found[1].decode().lower()
    if found[2] is None:
        return name
    return name + "." + re.sub(rb"\\(.)", rb"\1", found[2]).decode(errors="surrogateescape")


def _unquote(raw: bytes) -> bytes:
    word = raw.strip()
    if not _ODD.search(word):
        return word
    value, solid, quoted = bytearray(), 0, False
    at = 0
    while at < len(raw):
        char = raw[at : at + 1]
        at += 1
        if char == b'"':
            quoted = not quoted
            solid = max(solid, len(value))
        elif char == b"\\":
            char = raw[at : at + 1]
            at += 1
            if char == b"\r":
                char = raw[at : at + 1]
                at += 1
            if char != b"\n":
                value += _ESCAPES.get(char, char)
                solid = len(value)
        elif quoted or not char.isspace():
            value += char
            solid = len(value)
        elif value:
            value += b" "
    return bytes(value[:solid])
