"""Whatever happens to a project between two builds, its base shows the project."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carrel.trees.bases.store import BaseStore
from carrel.trees.removal import remove_tree
from tests.sampling import examples
from tests.trees.bases.helpers import iter_entries, listed, picture, request, shown

NAMES = [b"a", b"b", b"c", b"a.b", b"\xff\n", b"n" * 60]
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(b"/".join)
CONTENTS = st.one_of(st.binary(max_size=20), st.just(bytes(200_000)), st.just(b"x" * 70_000))

EDITS = st.one_of(
    st.tuples(st.just("write"), PATHS, CONTENTS),
    st.tuples(st.just("append"), PATHS, CONTENTS),
    st.tuples(st.just("folder"), PATHS, st.none()),
    st.tuples(st.just("remove"), PATHS, st.none()),
    st.tuples(st.just("move"), PATHS, PATHS),
    st.tuples(st.just("link"), PATHS, PATHS),
    st.tuples(st.just("symlink"), PATHS, PATHS),
    st.tuples(st.just("mode"), PATHS, st.sampled_from([0o600, 0o755, 0o4711, 0o000, 0o777])),
    st.tuples(st.just("time"), PATHS, st.integers(-(10**18), 4 * 10**18)),
    st.tuples(st.just("copy"), PATHS, PATHS),
    st.tuples(st.just("sparse"), PATHS, st.integers(0, 10**7)),
)
ROUNDS = st.lists(st.lists(EDITS, max_size=6), min_size=2, max_size=5)


def edit(top: bytes, kind: str, path: bytes, detail: object) -> None:
    """Does what is possible: what is not is no matter here."""
    full = os.path.join(top, path)
    other = os.path.join(top, detail) if isinstance(detail, bytes) else b""
    with suppress(OSError, shutil.Error):
        _edit(kind, full, other, detail)


def _edit(kind: str, full: bytes, other: bytes, detail: object) -> None:
    if kind in ("write", "folder", "symlink", "sparse"):
        os.makedirs(os.path.dirname(full), exist_ok=True)
    match kind, detail:
        case (("write" | "append"), bytes()):
            with open(full, "ab" if kind == "append" else "wb") as file:
                file.write(detail)
        case "folder", _:
            os.mkdir(full)
        case "remove", _:
            if os.path.isdir(full) and not os.path.islink(full):
                shutil.rmtree(full)
            else:
                os.unlink(full)
        case "move", _:
            os.rename(full, other)
        case "link", _:
            os.link(full, other, follow_symlinks=False)
        case "symlink", bytes():
            os.symlink(detail, full)
        case "mode", int():
            if not os.path.islink(full):
                os.chmod(full, detail)
        case "time", int():
            os.utime(full, ns=(detail, detail), follow_symlinks=False)
        case "copy", _:
            source, target = os.fsdecode(full), os.fsdecode(other)
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        case "sparse", int():
            with open(full, "ab") as file:
                file.truncate(detail)


@contextmanager
def places() -> Iterator[tuple[Path, Path]]:
    folder = Path(tempfile.mkdtemp(prefix="carrel-property-"))
    try:
        (folder / "project").mkdir()
        yield folder / "data", folder / "project"
    finally:
        remove_tree(folder)


def link_groups(top: Path) -> set[frozenset[bytes]]:
    found: dict[int, set[bytes]] = {}
    for path in picture(top):
        status = os.lstat(os.path.join(os.fsencode(top), path))
        if stat.S_ISREG(status.st_mode):
            found.setdefault(status.st_ino, set()).add(path)
    return {frozenset(paths) for paths in found.values() if len(paths) > 1}


@given(rounds=ROUNDS, filler=st.booleans())
@settings(
    max_examples=examples(8, exhaustive=60),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
def test_bases_follow_the_project(
    rounds: list[list[tuple[str, bytes, object]]], filler: bool
) -> None:
    with places() as (data, project):
        store = BaseStore(data)
        if filler:  # so that thin layers stay thin
            for number in range(40):
                (project / f"filler{number}").write_text(str(number))
        earlier = []
        for edits in rounds:
            for kind, path, detail in edits:
                edit(os.fsencode(project), kind, path, detail)
            base = store.build(request(project))
            expected = picture(project)
            assert shown(base) == expected
            assert listed(base) == expected
            assert base.entries == len(expected)
            grouped: dict[bytes, set[bytes]] = {}
            for entry in iter_entries(base):
                if entry.link_group is not None:
                    grouped.setdefault(entry.link_group, set()).add(entry.path)
            assert set(map(frozenset, grouped.values())) == link_groups(project)
            earlier.append((base, expected))
        for base, expected in earlier:
            assert shown(base) == expected
            assert store.get(base.base_id).base_id == base.base_id


@given(rounds=ROUNDS)
@settings(
    max_examples=examples(5, exhaustive=25),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
def test_the_same_content_has_the_same_id_however_it_came_about(
    rounds: list[list[tuple[str, bytes, object]]],
) -> None:
    with places() as (data, project):
        store = BaseStore(data)
        for edits in rounds:
            for kind, path, detail in edits:
                edit(os.fsencode(project), kind, path, detail)
            base = store.build(request(project))
        afresh = BaseStore(data.parent / "other").build(request(project))
        assert afresh.base_id == base.base_id
