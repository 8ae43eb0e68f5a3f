"""Names of commits: what may be asked for, what a remote offers, which one is meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from carrel.domain.errors import RefNotFound

_MAX_LENGTH = 1024
_FULL_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHORT_ID = re.compile(r"[0-9a-fA-F]{4,64}")
_STEPS = re.compile(r"(?:[~^][0-9]{0,6})*|\^\{(?:commit)?\}")
# As `git check-ref-format`: what no ref can hold.
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f:?*\[\\]|\.\.|@\{|//|\.lock(?:/|$)|(?:^|/)\.|[./]$")
_SHOWN = 5


@dataclass(frozen=True)
class Resolved:
    """A commit, and the branch that was asked for, when it was one."""

    commit: str
    branch: str | None = None


@dataclass(frozen=True)
class Wanted:
    """A ref as it was asked for: a name, and steps back from it (`~2`, `^`)."""

    text: str
    name: str
    steps: str

    @property
    def full_id(self) -> str | None:
        lower = self.name.lower()
        return lower if _FULL_ID.fullmatch(lower) else None

    @property
    def may_be_short_id(self) -> bool:
        return _SHORT_ID.fullmatch(self.name) is not None


@dataclass(frozen=True)
class Offered:
    """What a remote has: the object of each ref, and the commit where a tag has its own."""

    refs: Mapping[str, str]
    head_branch: str | None

    @property
    def id_length(self) -> int:
        return len(next(iter(self.refs.values()), ""))

    def find(self, name: str) -> str | None:
        """The full name of a ref, looked for as `git checkout` does: branches first."""
        places = (
            ("{}", "refs/heads/{}", "refs/tags/{}")
            if name == "HEAD" or name.startswith("refs/")
            else ("refs/heads/{}", "refs/tags/{}", "refs/{}", "refs/remotes/{}")
        )
        for place in places:
            full = place.format(name)
            if full in self.refs:
                return full
        return None


def parse_ref(text: str | None) -> Wanted:
    """Raises `RefNotFound` for what can be no ref, above all what git could take for an
    option."""
    given = "HEAD" if text is None else text
    name = re.split(r"[~^]", given, maxsplit=1)[0]
    steps = given[len(name) :]
    if (
        not name
        or len(given) > _MAX_LENGTH
        or name.startswith("-")
        or _FORBIDDEN.search(name)
        or not _STEPS.fullmatch(steps)
    ):
        raise RefNotFound(
            f"{given[:80]!r} is not the name of a commit.",
            hint="Give a branch, a tag or a commit's id.",
        )
    return Wanted(given, "HEAD" if name == "@" else name, steps)


def parse_offered(output: bytes) -> Offered:
    """From `git ls-remote --symref`."""
    refs: dict[str, str] = {}
    head: str | None = None
    for line in output.decode(errors="surrogateescape").split("\n"):
        value, _, name = line.partition("\t")
        if not name:
            continue
        if value.startswith("ref: "):
            if name == "HEAD":
                head = value.partition("ref: refs/heads/")[2] or None
        elif name.endswith("^{}"):
            refs[name.removesuffix("^{}")] = value
        else:
            refs.setdefault(name, value)
    return Offered(refs, head)


def not_found(wanted: Wanted, offered: Offered | None, why: str = "") -> RefNotFound:
    """The error, with names that look alike."""
    names = [
        name.split("/", 2)[2]
        for name in (offered.refs if offered else ())
        if name.startswith(("refs/heads/", "refs/tags/"))
    ]
    near = difflib.get_close_matches(wanted.name, names, _SHOWN) or sorted(names)[:_SHOWN]
    hint = f"There are, for example: {', '.join(near)}." if near else ""
    message = f"The repository has no commit {wanted.text!r}"
    return RefNotFound(f"{message}: {why}." if why else f"{message}.", hint=hint)
