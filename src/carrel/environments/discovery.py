"""Discovery: every rule is tried in order; the first that holds decides, and says why.

1. A Dockerfile. 2. A devcontainer.json. 3. The languages. 4. The default.

A file that cannot be used decides nothing: it becomes a note. Languages, versions and the
host's toolchain are found in any case, for runtimes that have no images. How the project is set up
is said by its `carrel.toml`, before all of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from carrel.domain.environments import (
    EnvironmentReport,
    Image,
    ReadFiles,
    SetupCommand,
    SetupStage,
    Toolchain,
    VersionAsked,
)
from carrel.environments.devcontainer import as_commands, find_devcontainers
from carrel.environments.dockerfile import ContainerFound, find_dockerfiles
from carrel.environments.files import ProjectReader, dig, open_folder
from carrel.environments.languages import (
    BASIC_PROGRAMS,
    DEFAULT_MATCH,
    Detected,
    default_image,
    find_languages,
    language_image,
)
from carrel.environments.programs import HostPrograms, look_up
from carrel.environments.versions import find_versions


def inspect_project(root: Path, host: HostPrograms) -> EnvironmentReport:
    """Of a folder. Reads files and runs nothing. Raises `ProjectNotFound`,
    `ProjectNotAFolder`, `ProjectUnreadable`; what is wrong in it are notes."""
    with open_folder(root) as files:
        return inspect_files(files, host)


def inspect_files(files: ReadFiles, host: HostPrograms) -> EnvironmentReport:
    """As `inspect_project`, of anything that can be read like a folder."""
    reader = ProjectReader(files)
    containers = [*find_dockerfiles(reader), *find_devcontainers(reader)]
    languages = find_languages(reader)
    versions = find_versions(reader, [".", *(one.found.folder for one in languages)])
    matches = [one.match for one in containers] + [one.match for one in languages]
    matches = matches or [DEFAULT_MATCH]
    decisive = containers[0] if containers else ContainerFound(matches[0])
    return EnvironmentReport(
        decided=matches[0],
        also=tuple(matches[1:]),
        image=decisive.image or _image(languages, versions),
        toolchain=_toolchain(host, languages, versions),
        languages=tuple(one.found for one in languages),
        versions=tuple(versions),
        setup=_setup(own_setup(reader), decisive, languages),
        ports=decisive.ports,
        variables=decisive.variables,
        notes=reader.notes,
    )


def _image(languages: Sequence[Detected], versions: Sequence[VersionAsked]) -> Image:
    return language_image(languages, versions) if languages else default_image()


OWN_FILE = "carrel.toml"
MOST_COMMANDS = 50
"""More are no list that a person wrote."""


def asks_for_setup(root: Path) -> bool:
    """Whether a folder says itself how it is set up. Raises as `inspect_project` does."""
    with open_folder(root) as files:
        return bool(own_setup(ProjectReader(files)))


def own_setup(reader: ProjectReader) -> tuple[SetupCommand, ...]:
    """`[setup] run`: a line for the shell or an argument list, or several of them."""
    asked = dig(reader.toml(OWN_FILE), "setup")
    if asked is None:
        return ()
    run = dig(asked, "run")
    several = run if isinstance(run, list) else [run]
    if run is None or len(several) > MOST_COMMANDS:
        reader.note(OWN_FILE, f"Its [setup] needs run, a list of up to {MOST_COMMANDS} commands.")
    found = []
    for one in several[:MOST_COMMANDS]:
        for _, argv in as_commands(one, lambda why: reader.note(OWN_FILE, f"In run, {why}")):
            found.append(SetupCommand(argv, OWN_FILE))
    return tuple(found)


def _setup(
    own: tuple[SetupCommand, ...], decisive: ContainerFound, languages: Sequence[Detected]
) -> tuple[SetupCommand, ...]:
    """What the project says itself, or the file that decides. When that makes nothing ready, the
    languages' own: what an image was built with is hidden by the tree that is put over it."""
    if own:
        later = [one for one in decisive.setup if one.stage is not SetupStage.CREATE]
        return (*own, *later)
    if any(command.stage is SetupStage.CREATE for command in decisive.setup):
        return decisive.setup
    return (*(command for one in languages for command in one.found.setup), *decisive.setup)


def _toolchain(
    host: HostPrograms, languages: Sequence[Detected], versions: Sequence[VersionAsked]
) -> Toolchain:
    needed = dict.fromkeys(BASIC_PROGRAMS, ("every project",))
    for one in languages:
        for program in one.programs:
            titles = needed.get(program, ())
            if one.language.title not in titles:
                needed[program] = (*titles, one.language.title)
    asked: dict[str, str] = {}
    for version in versions:
        asked.setdefault(version.tool, version.version)
    return look_up(host, needed, asked)
