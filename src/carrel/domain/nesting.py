"""How deep a JSON text may go. Parsers and writers of JSON are recursive: what one of them just
takes is too much for the next one that meets it with less of the stack left, and what is kept has
to be read again for as long as it is kept. So one bound stands at every door."""

from __future__ import annotations

MAX_DEPTH = 64
"""Levels of lists and objects. What people and programs send has a dozen, schemas of tools some
more; the shallowest of the parsers takes hundreds."""
_OTHERS = bytes(byte for byte in range(256) if byte not in b"[{]}")
_LISTS = bytes.maketrans(b"{}", b"[]")
_TOO_DEEP = b"[" * (MAX_DEPTH + 1)


def is_too_deep(text: bytes | str) -> bool:
    """Without parsing it: what is no JSON is for the parser to say. Nothing but the brackets is
    looked at, of which each pass takes the innermost away."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return False
    unescaped = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside_of_strings = b"".join(unescaped.split(b'"')[::2])
    brackets = outside_of_strings.translate(_LISTS, _OTHERS)
    for _ in range(MAX_DEPTH):
        if _TOO_DEEP in brackets:
            return True
        before = len(brackets)
        brackets = brackets.replace(b"[]", b"")
        if len(brackets) == before:
            return False
    return bool(brackets)
