"""What git takes and a checkout could be harmed by: it does not land."""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence

from carrel.domain.errors import LandingRefused
from carrel.domain.landing import LandedFile
from carrel.review.states import GITLINK, LINK
from carrel.review.work import WorkRepository

SHOWN = 20
"""Conflicts and refusals that an error names."""
_MOST_LINKS = 40
"""As the kernel: who follows more gets nowhere."""
_MOST_STEPS = 2_000_000
"""Of all links of a tree, in a second or two."""
GITS = re.compile(r"(?:^|/)(?:\.git|git~\d+)(?:/|$)", re.IGNORECASE)
"""Names that git refuses, since some file systems take them for its own folder."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f\\]")


def look_through(work: WorkRepository, start: str, tree: str) -> tuple[LandedFile, ...]:
    """What git takes and a checkout could be harmed by. Raises `LandingRefused`."""
    found = work.changed(work.tree_of(start) if start else work.empty_tree(), tree)
    new = [file for file, _ in found if file.kind != "D"]
    problems = [
        *filter(None, map(_problem, new)),
        *_links_out(work.links(start) if start else {}, work.links(tree)),
        *_twins(work, tree, [file.path for file in new]),
    ]
    if problems:
        raise LandingRefused(
            f"The work cannot land: {problems[0]}",
            hint="Change it in the space, and land again.",
            problems=problems[:SHOWN],
            total=len(problems),
        )
    return tuple(file for file, _ in found)


def expect_no_filter(work: WorkRepository, tree: str, files: Sequence[LandedFile]) -> None:
    """New files would be kept as they are, where the project wants a pointer to them, or has them
    encrypted. Raises `LandingRefused`."""
    new = [file.path for file in files if file.kind == "A" and file.mode != LINK]
    if found := work.filters(tree, new) if new else {}:
        path, name = next(iter(found.items()))
        raise LandingRefused(
            f"The project keeps files such as {path!r} by a filter ({name}), and none runs here.",
            hint="Take them out with `carrel cp`, and commit them with git in the project.",
            problems=list(found)[:SHOWN],
            total=len(found),
        )


def _problem(file: LandedFile) -> str:
    path = file.path
    if _CONTROL.search(path):
        return f"the name {path!r} has a control character or a backslash."
    if file.mode == GITLINK:
        return f"{path!r} is a repository of its own."
    names = (".gitattributes", ".gitignore", ".gitmodules")
    if file.mode == LINK and path.rpartition("/")[2].lower() in names:
        return f"{path!r} is a link, which git would follow."
    return ""


def _links_out(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    """Links of the landing that lead out, and those of the project that do because of it."""
    if not after:
        return
    was, now = _Links(before), _Links(after)
    for path, target in after.items():
        problem = now.problem(path)
        if problem and not (before.get(path) == target and was.problem(path)):
            yield f"the link {path!r} {problem}, to {target[:200]!r}."


class _Links:
    """Where the links of a tree lead, each by way of others: `a/up/../x` is not in `a` when
    `a/up` is a link."""

    def __init__(self, links: Mapping[str, str]) -> None:
        self._links = links
        self._steps = _MOST_STEPS

    def problem(self, path: str) -> str:
        here = path.split("/")[:-1]
        left = [path.rpartition("/")[2]]
        followed = 0
        while left:
            self._steps -= 1
            name = left.pop()
            if name == "..":
                if not here:
                    return "leads out of the project"
                here.pop()
                continue
            if name in ("", "."):
                continue
            if GITS.fullmatch(name):
                return "leads into git's own folder"
            here.append(name)
            target = self._links.get("/".join(here))
            if target is None:
                continue
            here.pop()
            followed += 1
            if target.startswith("/"):
                return "leads out of the project"
            if followed > _MOST_LINKS:
                return ""
            if self._steps < 0:
                return "is one of too many links through links"
            left += reversed(target.split("/"))
        return ""


def _twins(work: WorkRepository, tree: str, paths: list[str]) -> Iterator[str]:
    """New names that some file systems take for one that is there too."""
    folders: dict[str, set[str]] = {}
    for path in paths:
        while path:
            above, _, name = path.rpartition("/")
            folders.setdefault(above, set()).add(name)
            path = above
    listed = work.names(tree, folders) if folders else {}
    for folder, names in folders.items():
        seen: dict[str, str] = {}
        for name in listed.get(folder, ()):
            key = unicodedata.normalize("NFKC", name).casefold()
            other = seen.setdefault(key, name)
            if other != name and {other, name} & names:
                yield f"{posixpath.join(folder, name)!r} and {other!r} differ only in their case."
