"""The work of a space as a patch, a bundle and a tar, which git and tar elsewhere take."""

from __future__ import annotations

import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.errors import (
    Forbidden,
    LandingConflicts,
    LandingRefused,
    NothingToLand,
    ProjectNotFound,
    SpaceNotFound,
)
from carrel.domain.review import DELETED, ExportFormat, ExportRequest
from carrel.domain.spaces import Space
from carrel.service.exports import SpaceExports
from tests.review.conftest import Repository
from tests.service.rig import make, run

WORK = (
    "sed -i 's/line 3/agent 3/' a.txt; mv old.txt older.txt;"
    " chmod +x src/b.py; ln -s a.txt link; echo noise > x.log; : > empty;"
    r" head -c 3000 /dev/urandom > blob.bin; printf 'é\n' > 'ü b.txt'; echo c > src/-c"
)
FIRES = """
mkdir -p .git/hooks
for hook in pre-commit post-index-change reference-transaction; do
    printf '#!/bin/sh\\ntouch /workspace/fired\\n' > .git/hooks/$hook; chmod +x .git/hooks/$hook
done
cat >> .git/config <<'END'
[core]
    fsmonitor = touch /workspace/fired
[diff]
    external = touch /workspace/fired
[filter "x"]
    clean = touch /workspace/fired
    smudge = touch /workspace/fired
END
mkdir -p .git/info
echo '* filter=x diff=x merge=x' > .git/info/attributes
"""


@pytest.fixture
def exports(services: Services) -> SpaceExports:
    return services.operations.review._exports


async def exported(
    exports: SpaceExports, space: Space, format: str, place: Path, message: str = ""
) -> tuple[Path, str]:
    request = ExportRequest(ExportFormat(format), message)
    ticket, pieces = await exports.export(LOCAL, space.space_id, request)
    place.write_bytes(b"".join(pieces))
    return place, ticket


async def in_space(services: Services, space: Space) -> str:
    script = (
        "find . -path ./.git -prune -o -name '*.log' -prune -o -name fired -prune -o -type f"
        " -printf '%P %m\n' -o -type l -printf '%P -> %l\n' | sort; cat a.txt blob.bin | sha1sum"
    )
    return (await run(services, space, script))[1]


def at(folder: Path) -> str:
    script = (
        "find . -path ./.git -prune -o -type f -printf '%P %m\n' -o -type l -printf '%P -> %l\n'"
        " | sort; cat a.txt blob.bin | sha1sum"
    )
    done = subprocess.run(["sh", "-c", script], cwd=folder, capture_output=True, check=True)
    return done.stdout.decode()


def clone(repository: Repository, name: str) -> Repository:
    place = repository.path.parent / name
    repository.git("clone", "-q", str(repository.path), str(place))
    return Repository(place)


async def test_each_format_gives_the_same_files(
    services: Services, exports: SpaceExports, repository: Repository, tmp_path: Path
) -> None:
    space = await make(services, repository.path, name="desk")
    await run(services, space, WORK)
    await run(services, space, FIRES)
    state = repository.state()
    wanted = await in_space(services, space)
    patch, ticket = await exported(exports, space, "patch", tmp_path / "p", "Greet\n\nMore words.")
    for way in (("am", "-q"), ("apply", "--index")):
        other = clone(repository, f"by-{way[0]}")
        other.git(*way, str(patch))
        assert at(other.path) == wanted, way
    said = Repository(repository.path.parent / "by-am").git("log", "-1", "--format=%s%n%b")
    assert said.startswith("Greet\nMore words.") and space.space_id in said

    bundle, _ = await exported(exports, space, "bundle", tmp_path / "b")
    other = clone(repository, "by-bundle")
    other.git("bundle", "verify", "-q", str(bundle))
    other.git("pull", "-q", "--ff-only", str(bundle), "carrel/desk")
    assert at(other.path) == wanted and other.git("rev-list", "--count", "HEAD") == "2"

    tar, _ = await exported(exports, space, "tar", tmp_path / "t")
    other = clone(repository, "by-tar")
    with tarfile.open(tar) as archive:
        assert "x.log" not in archive.getnames()
    subprocess.run(["tar", "-xf", tar], cwd=other.path, check=True)
    gone = (other.path / DELETED).read_bytes()
    assert gone == b"old.txt\0"
    (other.path / DELETED).unlink()
    (other.path / "old.txt").unlink()
    assert at(other.path) == wanted

    assert repository.state() == state
    fired = await run(services, space, "cat .git/config; ls fired")
    assert "No such file" in fired[1] and "touch" in fired[1], "nothing of the space ran"
    assert not list((services.settings.data / "exports").iterdir())
    assert (await services.spaces.review(LOCAL, "desk")).left_files > 0
    await services.files.copied(LOCAL, "desk", ticket)
    assert (await services.spaces.review(LOCAL, "desk")).left_files == 0, "it was taken out"


async def test_a_tenants_patch_does_not_name_the_owner(
    services: Services, exports: SpaceExports, repository: Repository
) -> None:
    space = await make(services, repository.path, name="desk")
    await run(services, space, "echo b >> a.txt")
    opened = await services.spaces.opened(LOCAL, space.space_id)
    for guest in (False, True):
        asked, nobody = ExportRequest(ExportFormat.PATCH), lambda *_: None
        theirs = replace(space, guest=guest)
        with exports._exporter.export(
            theirs, opened.driver, opened.tree, asked, nobody, nobody
        ) as file:
            lines = file.read().decode().splitlines()
        assert (lines[1] == "From: Carrel <carrel@localhost>") == guest, lines[1]


async def test_what_the_person_had_not_committed(
    services: Services, exports: SpaceExports, repository: Repository, tmp_path: Path
) -> None:
    lines = (repository.path / "a.txt").read_text()
    repository.write(a_txt=lines.replace("line 15", "mine 15"))
    space = await make(services, repository.path, name="desk")
    await run(services, space, "sed -i 's/line 3$/agent 3/' a.txt")
    patch, _ = await exported(exports, space, "patch", tmp_path / "p")
    repository.git("apply", "--check", str(patch))
    assert "+agent 3" in patch.read_text() and "+mine" not in patch.read_text()
    bundle, _ = await exported(exports, space, "bundle", tmp_path / "b")
    other = clone(repository, "other")
    other.git("pull", "-q", str(bundle), "carrel/desk")
    landed = (other.path / "a.txt").read_text()
    assert "agent 3" in landed and "mine" not in landed
    await run(services, space, "sed -i 's/mine 15/agent 15/' a.txt")
    with pytest.raises(LandingConflicts, match="had not committed") as refused:
        await exported(exports, space, "bundle", tmp_path / "b")
    assert "--patch" in (refused.value.hint or "")


async def test_a_project_without_git(
    services: Services, exports: SpaceExports, tmp_path: Path
) -> None:
    project = tmp_path / "plain"
    project.mkdir()
    (project / "a.txt").write_text("one\n")
    space = await make(services, project, name="desk")
    for format in ExportFormat:
        with pytest.raises(NothingToLand):
            await exported(exports, space, format, tmp_path / "x")
    await run(services, space, "echo two >> a.txt; printf 'a\\0b' > bin")
    patch, _ = await exported(exports, space, "patch", tmp_path / "p")
    subprocess.run(["git", "apply", str(patch)], cwd=project, check=True)
    assert (project / "a.txt").read_text() == "one\ntwo\n"
    assert (project / "bin").read_bytes() == b"a\0b"
    await exported(exports, space, "tar", tmp_path / "t")
    with pytest.raises(LandingRefused, match="no git repository"):
        await exported(exports, space, "bundle", tmp_path / "b")


async def test_what_is_refused(
    services: Services, exports: SpaceExports, repository: Repository, tmp_path: Path
) -> None:
    space = await make(services, repository.path, name="desk", labels={"team": "x"})
    await run(services, space, "ln -s /etc/passwd out; mkdir -p sub/.GIT; echo x > sub/.GIT/config")
    for format in ("patch", "bundle"):
        with pytest.raises(LandingRefused):
            await exported(exports, space, format, tmp_path / "x")
    await exported(exports, space, "tar", tmp_path / "t")
    await run(services, space, "rm -r out sub; echo x > new")
    label = Caller("t", Scope(ScopeKind.LABEL, "team=x"))
    other = Caller("t", Scope(ScopeKind.LABEL, "team=y"))
    with pytest.raises(Forbidden):
        await exports.export(label, "desk", ExportRequest(ExportFormat.BUNDLE))
    _, pieces = await exports.export(label, space.space_id, ExportRequest(ExportFormat.PATCH))
    assert b"+x\n" in b"".join(pieces)
    with pytest.raises(SpaceNotFound):
        await exports.export(other, space.space_id, ExportRequest(ExportFormat.PATCH))


async def test_the_project_moved_or_is_gone(
    services: Services, exports: SpaceExports, repository: Repository, tmp_path: Path
) -> None:
    space = await make(services, repository.path, name="desk")
    await run(services, space, "echo x > new")
    repository.commit("later", a_txt="later\n")
    bundle, _ = await exported(exports, space, "bundle", tmp_path / "b")
    repository.git("fetch", "-q", str(bundle), "carrel/desk:taken")
    assert repository.git("rev-parse", "taken^") == repository.git("rev-parse", "main^")
    repository.path.rename(tmp_path / "elsewhere")
    with pytest.raises(ProjectNotFound):
        await exported(exports, space, "bundle", tmp_path / "b")
    await exported(exports, space, "patch", tmp_path / "p")
