"""Layers that trees share: whole for as long as a tree has one, and gone after the last."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from carrel.domain.trees import TreeLayer
from carrel.trees import shared_layers
from carrel.trees.removal import remove_tree
from carrel.trees.shared_layers import SharedLayers

END_S = 60.0


def fill(place: Path) -> None:
    (place / "folder").mkdir()
    for name in ("folder/one", "two"):
        (place / name).write_text(name)


LAYER = TreeLayer("state", fill)


def is_whole(layers: SharedLayers, note: Path) -> bool:
    found = layers.of(note)
    assert found is not None
    return all((found / name).read_text() == name for name in ("folder/one", "two"))


def kept(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*") if path.name != ".lock")


@pytest.fixture
def layers(tmp_path: Path) -> SharedLayers:
    (tmp_path / "trees").mkdir()
    return SharedLayers(tmp_path / "layers")


def test_one_for_all_of_a_state(layers: SharedLayers, tmp_path: Path) -> None:
    filled: list[Path] = []

    def noting(place: Path) -> None:
        filled.append(place)
        fill(place)

    notes = [tmp_path / f"note{number}" for number in range(3)]
    for note in notes:
        layers.lend(TreeLayer("state", noting), note)
    other = tmp_path / "other"
    layers.lend(TreeLayer("other", fill), other)
    assert len(filled) == 1 and layers.of(tmp_path / "none") is None
    for note in notes:
        layers.tidy()
        assert is_whole(layers, note)
        note.unlink()
    layers.tidy()
    assert kept(tmp_path / "layers") == ["other"] and is_whole(layers, other)


def test_what_cannot_be_filled_leaves_nothing(layers: SharedLayers, tmp_path: Path) -> None:
    def fail(place: Path) -> None:
        fill(place)
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        layers.lend(TreeLayer("state", fail), tmp_path / "note")
    assert kept(tmp_path / "layers") == [] and not (tmp_path / "note").exists()


def test_many_at_once(layers: SharedLayers, tmp_path: Path) -> None:
    def work(number: int) -> None:
        for _ in range(10):
            note = tmp_path / f"note{number}"
            layers.lend(LAYER, note)
            assert is_whole(layers, note)
            note.unlink()
            SharedLayers(tmp_path / "layers").tidy()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [None] * 4
    layers.tidy()
    assert kept(tmp_path / "layers") == []


def test_lent_while_it_goes(
    layers: SharedLayers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who makes a tree gets no layer that is just found to be without one."""
    note = tmp_path / "note"
    layers.lend(LAYER, note)
    note.unlink()
    lending = threading.Thread(target=layers.lend, args=(LAYER, note))
    real = shared_layers._is_unused

    def is_unused(layer: Path) -> bool:
        found = real(layer)
        lending.start()
        lending.join(0.2)
        return found

    monkeypatch.setattr(shared_layers, "_is_unused", is_unused)
    layers.tidy()
    lending.join(END_S)
    assert is_whole(layers, note)


STEPS = {
    os: ("link", "mkdir", "rename", "rmdir", "unlink", "open"),
    shared_layers: ("remove_tree",),
}


def killed_at(step: int, work: Callable[[], object]) -> bool:
    """Runs it in a process that is killed before that step. Whether it came so far."""
    pid = os.fork()
    if pid == 0:
        steps = count()

        def counted(real: Callable[..., Any], *args: Any, **options: Any) -> Any:
            if next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        try:
            for module, names in STEPS.items():
                for name in names:
                    setattr(module, name, partial(counted, getattr(module, name)))
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("others", (0, 1))
def test_killed_at_every_step(
    layers: SharedLayers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """Of making a tree and of removing it; another tree loses nothing, and nothing stays."""
    monkeypatch.setattr(shared_layers, "STALE_S", -1.0)
    tree, kept_note = tmp_path / "trees" / "one", tmp_path / "kept"
    if others:
        layers.lend(LAYER, kept_note)

    def make() -> None:
        tree.mkdir()
        layers.lend(LAYER, tree / "note")

    def remove() -> None:
        remove_tree(tree)
        layers.tidy()

    for begin, work in ((remove, make), (make, remove)):
        for step in count():
            if not tree.exists() and begin is make:
                begin()
            came = killed_at(step, work)
            layers.tidy()
            if (tree / "note").exists():
                assert is_whole(layers, tree / "note")
            remove()
            assert kept(tmp_path / "layers") == ["state"] * others
            assert not others or is_whole(layers, kept_note)
            if not came:
                break
        assert step > 3
