"""The third rule: the languages that a project is written in, told by the files it has; and the
last one, what a project gets that asks for nothing.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass

from carrel.domain.environments import (
    Image,
    LanguageFound,
    Match,
    Rule,
    SetupCommand,
    VersionAsked,
)
from carrel.environments.files import ProjectReader, join
from carrel.environments.language_table import LANGUAGES, Language, Manager
from carrel.environments.versions import image_tag

DEFAULT_IMAGE = "debian:stable"
BASIC_PROGRAMS = ("sh", "git")
"""What every project needs, whatever it is written in."""

DEFAULT_MATCH = Match(Rule.DEFAULT, "", "No file of the project asks for anything.")


def default_image(why: str = "") -> Image:
    return Image(DEFAULT_IMAGE, why=why or f"{DEFAULT_IMAGE} is the default.")


MAX_FOLDERS = 64
"""How many folders below the root are looked into when the root itself tells nothing."""
_FOREIGN = frozenset({"node_modules", "vendor", "third_party", "target", "build", "dist"})
"""Folders with code that is not the project's own."""


@dataclass(frozen=True)
class Detected:
    """A language in a folder of the project, with its row of the table."""

    language: Language
    found: LanguageFound
    programs: tuple[str, ...]

    @property
    def match(self) -> Match:
        use = "uses" if self.language.helper else "is written in"
        why = f"{self.found.path} is there, so the project {use} {self.language.title}"
        why += f", with {self.found.manager}." if self.found.manager else "."
        return Match(Rule.LANGUAGE, self.found.path, why)


def find_languages(reader: ProjectReader) -> list[Detected]:
    """Those of the root; when it has none, or only helpers such as a Makefile, also those of
    the folders in it."""
    detected = _in_folder(reader, ".")
    if any(not one.language.helper for one in detected):
        return detected
    folders = [
        name
        for name in reader.listing(".").folders
        if not name.startswith(".") and name not in _FOREIGN
    ]
    if len(folders) > MAX_FOLDERS:
        reader.note(".", f"It has more than {MAX_FOLDERS} folders; some were not looked into.")
    for name in folders[:MAX_FOLDERS]:
        detected += [one for one in _in_folder(reader, name) if not one.language.helper]
    return detected


def language_image(detected: Iterable[Detected], versions: Iterable[VersionAsked]) -> Image:
    """Of a single language, its own; the default for several, since none has them all."""
    languages = {one.language.name: one.language for one in detected if not one.language.helper}
    single = next(iter(languages.values())) if len(languages) == 1 else None
    if single is None or not single.image:
        titles = " and ".join(one.title for one in languages.values())
        why = f"No one image is known for {titles}: the default, without their programs."
        return default_image(why if titles else "")
    asked = (one.version for one in versions if one.tool == single.name)
    version = next(asked, "")
    tag = image_tag(single.name, version)
    reference = single.image.format(tag or single.tag)
    if tag:
        why = f"{reference} is the image for {single.title} {version}."
    else:
        why = f"{reference} is the image for {single.title}; no single version is asked for."
    return Image(reference, why=why)


def _in_folder(reader: ProjectReader, folder: str) -> list[Detected]:
    detected: dict[str, Detected] = {}
    for language in LANGUAGES:
        if language.name not in detected:
            marker = _marker(reader, folder, language.markers, language.pattern)
            if marker:
                detected[language.name] = _describe(reader, folder, language, marker)
    return list(detected.values())


def _describe(reader: ProjectReader, folder: str, language: Language, marker: str) -> Detected:
    managers = _managers(reader, folder, language)
    manager, path = managers[0] if managers else (None, join(folder, marker))
    for other, lock in managers:
        if manager and other.locked and other.name != manager.name:
            reader.note(lock, f"It pins the packages too, but {path} decides.")
    found = LanguageFound(
        language.name,
        language.title,
        join(folder, marker),
        folder,
        manager.name if manager else "",
        _setup(manager, folder, path) if manager else (),
    )
    return Detected(language, found, manager.programs if manager else language.programs)


def _managers(reader: ProjectReader, folder: str, language: Language) -> list[tuple[Manager, str]]:
    """Those that hold, with the file that says so. The one that package.json names itself
    comes first."""
    found = []
    for manager in language.managers:
        marker = _marker(reader, folder, manager.markers, manager.pattern)
        if marker:
            found.append((manager, join(folder, marker)))
    if language.name != "node":
        return found
    package = join(folder, "package.json")
    named = named_manager(reader, package)
    if named and all(manager.name != named for manager, _ in found):
        found += [(one, package) for one in language.managers if one.name == named][:1]
    return sorted(found, key=lambda pair: pair[0].name != named) if named else found


def named_manager(reader: ProjectReader, path: str) -> str:
    """The manager that a package.json names, without its version."""
    package = reader.json(path) if reader.exists(path) else None
    named = package.get("packageManager") if package else None
    return named.partition("@")[0] if isinstance(named, str) else ""


def _marker(reader: ProjectReader, folder: str, markers: tuple[str, ...], pattern: str) -> str:
    for marker in markers:
        for name in _matching(reader, folder, marker):
            path = join(folder, name)
            if reader.exists(path) and (not pattern or _contains(reader, path, pattern)):
                return name
    return ""


def _matching(reader: ProjectReader, folder: str, marker: str) -> list[str]:
    if "*" in marker:
        return fnmatch.filter(reader.listing(folder).files, marker)
    return [marker] if marker in reader.names(folder) else []


def _contains(reader: ProjectReader, path: str, pattern: str) -> bool:
    return re.search(pattern, reader.text(path) or "", re.MULTILINE) is not None


def _setup(manager: Manager, folder: str, path: str) -> tuple[SetupCommand, ...]:
    name = path.rpartition("/")[2]
    return tuple(
        SetupCommand(tuple(name if word == "{}" else word for word in argv), path, folder=folder)
        for argv in manager.setup
    )
