"""Finding, listing and removing bases; what a crash of the machine leaves."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from carrel.domain.errors import BaseInUse, BaseNotFound, TreeDamaged
from carrel.domain.projects import Progress
from carrel.domain.trees import Base
from carrel.trees.bases import records
from carrel.trees.bases.store import BaseStore
from tests.trees.bases.helpers import left_in_staging, picture, request, shown, write
from tests.trees.git.repositories import git, make_repository


@pytest.fixture
def three(store: BaseStore, project: Path) -> list[Base]:
    """Three bases on top of one another."""
    for number in range(40):
        write(project / f"many/{number}")
    bases = []
    for number in range(3):
        write(project / "README", f"state {number}")
        bases.append(store.build(request(project)))
    assert [len(base.layers) for base in bases] == [1, 2, 3]
    return bases


def test_bases_are_found_again(store: BaseStore, three: list[Base], data: Path) -> None:
    again = BaseStore(data)
    assert again.list() == three
    assert [again.get(base.base_id) for base in three] == three


@pytest.mark.parametrize("base_id", ["ba_" + "a" * 26, "", "..", "ba_", "../../etc"])
def test_what_is_not_there_is_not_found(store: BaseStore, base_id: str) -> None:
    with pytest.raises(BaseNotFound):
        store.get(base_id)
    with pytest.raises(BaseNotFound):
        store.remove(base_id)


def test_a_base_is_not_removed_under_another(
    store: BaseStore, three: list[Base], data: Path, project: Path
) -> None:
    with pytest.raises(BaseInUse) as caught:
        store.remove(three[0].base_id)
    assert caught.value.hint
    assert store.list() == three
    for base in reversed(three):
        store.remove(base.base_id)
    assert store.list() == []
    assert left_in_staging(data) == []
    assert list((data / "bases/.heads").iterdir()) == []
    assert shown(store.build(request(project))) == picture(project)


def test_the_uppermost_goes_and_the_next_stands_on_what_is_left(
    store: BaseStore, three: list[Base], project: Path
) -> None:
    store.remove(three[2].base_id)
    write(project / "README", "another state")
    base = store.build(request(project))
    assert shown(base) == picture(project)


def test_a_base_that_is_removed_while_the_next_is_built(
    store: BaseStore, three: list[Base], project: Path, data: Path
) -> None:
    def remove_below(progress: Progress) -> None:
        if progress.stage == "publishing" and store.list() == three:
            store.remove(three[2].base_id)

    write(project / "README", "another state")
    base = store.build(request(project), remove_below)
    assert shown(base) == picture(project)
    assert left_in_staging(data) == []


def _spoil(base: Base, change: Callable[[dict[str, object]], None]) -> None:
    path = base.folder / "base.json"
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def test_descriptions_that_cannot_be_read(store: BaseStore, three: list[Base]) -> None:
    _spoil(three[2], lambda values: values.update(version=99))
    with pytest.raises(TreeDamaged):
        store.get(three[2].base_id)
    (three[2].folder / "base.json").write_bytes(b"\xff{")
    with pytest.raises(TreeDamaged):
        store.get(three[2].base_id)
    assert store.list() == three[:2]
    # What cannot be read can be removed.
    store.remove(three[2].base_id)
    with pytest.raises(BaseNotFound):
        store.get(three[2].base_id)


def test_a_manifest_that_cannot_be_read(store: BaseStore, three: list[Base], project: Path) -> None:
    (three[2].folder / "manifest").write_bytes(b"nonsense")
    write(project / "README", "another state")
    base = store.build(request(project))
    assert shown(base) == picture(project)


def test_a_missing_layer(store: BaseStore, three: list[Base]) -> None:
    (three[1].folder / "layer").rename(three[1].folder / "lost")
    with pytest.raises(TreeDamaged):
        store.get(three[2].base_id)


def test_a_head_that_cannot_be_read_costs_only_time(
    store: BaseStore, three: list[Base], data: Path, project: Path
) -> None:
    for head in (data / "bases/.heads").iterdir():
        head.write_bytes(head.read_bytes()[:100])
    base = store.build(request(project))
    assert base.base_id == three[2].base_id


def _reboot(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("records", "publication"):
        monkeypatch.setattr(f"carrel.trees.bases.{module}.boot_id", lambda: "another boot")


def test_after_a_reboot_whole_bases_are_whole(
    store: BaseStore, three: list[Base], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert records.boot_id()
    _reboot(monkeypatch)
    assert store.list() == three
    assert store.get(three[2].base_id) == three[2]


@pytest.mark.parametrize("number", [0, 2])
def test_after_a_power_cut_files_that_are_cut_short_are_noticed(
    store: BaseStore,
    three: list[Base],
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    os.truncate(three[number].layers[0] / "README", 2)
    _reboot(monkeypatch)
    with pytest.raises(TreeDamaged):
        store.get(three[number].base_id)
    base = store.build(request(project))
    assert shown(base) == picture(project)
    assert store.get(base.base_id) == base


def test_after_a_reboot_an_index_is_whole_though_it_is_not_as_long(
    store: BaseStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = make_repository(tmp_path / "repository")
    git(repository, "update-index", "--untracked-cache")
    git(repository, "status")
    base = store.build(request(repository))
    index = base.layers[0] / ".git/index"
    assert index.stat().st_size != (repository / ".git/index").stat().st_size
    _reboot(monkeypatch)
    assert store.get(base.base_id) == base


def test_after_a_power_cut_an_index_that_is_cut_short_is_noticed(
    store: BaseStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = store.build(request(make_repository(tmp_path / "repository")))
    os.truncate(base.layers[0] / ".git/index", 100)
    _reboot(monkeypatch)
    with pytest.raises(TreeDamaged):
        store.get(base.base_id)
