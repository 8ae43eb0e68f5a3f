"""Which tag of a language's image fits a version that was asked for."""

from __future__ import annotations

import re

_EXACT = re.compile(r"(?:==?\s*)?v?(\d+(?:\.\d+){0,2})", re.ASCII)
_MAJOR = re.compile(r"\^\s*v?(\d+)(?:\.\d+){0,2}|v?(\d+)(?:\.[xX*]){1,2}", re.ASCII)
_MINOR = re.compile(r"(?:~>?|~=)\s*v?(\d+\.\d+)(?:\.\d+)?|={0,2}(\d+\.\d+)\.[xX*]", re.ASCII)
_JAVA = re.compile(r"(?:[a-z]+[\w-]*?-)?(?:1\.)?(\d+)\b", re.ASCII)


def image_tag(tool: str, version: str) -> str:
    """Empty for a range that is open, and for names such as `stable`."""
    version = version.strip()
    if tool == "java":
        java = _JAVA.match(version)
        return java.group(1) if java else ""
    for form in (_EXACT, _MAJOR, _MINOR):
        match = form.fullmatch(version)
        if match:
            return next(group for group in match.groups() if group)
    return ""
