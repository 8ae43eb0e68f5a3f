"""The host works in a tree while the sandbox changes it underneath: between looking and
using there is no moment in which it gets out. Whoever looks first and uses then does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from carrel.domain.errors import PathError
from carrel.domain.runtimes import Output, Sandbox
from carrel.linux.openat2 import open_beneath, walk_beneath
from carrel.trees.files import Opener, TreeFiles
from tests.conformance.runtime_rig import Rig, finish
from tests.runtimes.escapes import swapper
from tests.runtimes.escapes.world import CANARY, PYTHON, World

PATIENCE_S = 30.0
"""A swap takes microseconds; one try in a few comes between two of them."""
TRIES = 1000
NAIVE_S = 20.0
"""The naive way is fooled within milliseconds, on a machine with one busy core in seconds."""
INSIDE = b"inside"
BY_HOST = b"by the host"


@dataclass(frozen=True)
class Race:
    """`careful` and `naive` do the same; each answers whether it was led outside."""

    name: str
    swap: str
    careful: Callable[[TreeFiles, World], bool]
    naive: Callable[[Path, World], bool] | None


def _read(files: TreeFiles, path: str) -> bool:
    return files.read(path) not in (INSIDE, b"")  # empty: just being written anew


def _read_name(files: TreeFiles, _world: World) -> bool:
    return _read(files, "name")


def _read_in_folder(files: TreeFiles, _world: World) -> bool:
    return _read(files, "folder/file")


def _read_link(files: TreeFiles, _world: World) -> bool:
    return _read(files, "deep/er/link")


def _write(files: TreeFiles, world: World) -> bool:
    with contextlib.suppress(PathError):
        files.write("name", INSIDE)
    return Path(world.targets.exchange).read_bytes() != b"theirs"


def _list(files: TreeFiles, _world: World) -> bool:
    return any(info.name not in ("file", ".") for info in files.list("folder"))


def _delete(files: TreeFiles, world: World) -> bool:
    with contextlib.suppress(PathError):
        files.delete("folder/file")
    return not Path(_outside_file(world)).exists()


def _move_in(files: TreeFiles, world: World) -> bool:
    """A file of the folder, to elsewhere in the tree."""
    with contextlib.suppress(PathError):
        files.move("folder/file", "taken", replace=True)
    return not Path(_outside_file(world)).exists()


def _outside_file(world: World) -> str:
    return f"{world.targets.outside_folder}/race/file"


def _naive_read(tree: Path, _world: World) -> bool:
    path = tree / "name"
    return not path.is_symlink() and path.read_bytes() == CANARY.encode()


def _naive_folder(tree: Path, _world: World) -> bool:
    path = tree / "folder" / "file"
    inside = os.path.realpath(path).startswith(os.path.realpath(tree) + "/")
    return inside and path.read_bytes() == b"outside"


def _naive_write(tree: Path, world: World) -> bool:
    path = tree / "name"
    if not path.is_symlink():
        with path.open("r+b") as file:
            file.write(BY_HOST)
    found = Path(world.targets.exchange).read_bytes()
    Path(world.targets.exchange).write_bytes(b"theirs")
    return found != b"theirs"


def _naive_list(tree: Path, _world: World) -> bool:
    path = tree / "folder"
    return not path.is_symlink() and "only-outside" in os.listdir(path)


def _naive_delete(tree: Path, world: World) -> bool:
    if not (tree / "folder").is_symlink():
        (tree / "folder" / "file").unlink()
    outside = Path(_outside_file(world))
    gone = not outside.exists()
    outside.write_text("outside")
    return gone


RACES = (
    Race("races.file_for_link", "file_for_link", _read_name, _naive_read),
    Race("races.folder_for_link", "folder_for_link", _read_in_folder, _naive_folder),
    Race("races.write_through_link", "file_for_link", _write, _naive_write),
    Race("races.list_through_link", "folder_for_link", _list, _naive_list),
    Race("races.delete_through_link", "folder_for_link", _delete, _naive_delete),
    Race("races.move_through_link", "folder_for_link", _move_in, None),
    Race("races.folder_moved_up", "folder_moved_up", _read_link, None),
)


@pytest.fixture
def outside(world: World, sandbox: tuple[Rig, Sandbox, asyncio.Runner]) -> Iterator[World]:
    """What the links lead to: a folder with a file of the same name, and one beside the
    tree, where a path that goes up once too often ends."""
    folder = Path(world.targets.outside_folder) / "race"
    beside = sandbox[1].spec.folder / "file"
    folder.mkdir()
    try:
        for path in (folder / "file", folder / "only-outside", beside):
            path.write_text("outside")
        yield world
    finally:
        for path in (folder / "file", folder / "only-outside", beside):
            path.unlink(missing_ok=True)
        folder.rmdir()


@contextlib.contextmanager
def swapping(
    race: Race, world: World, sandbox: tuple[Rig, Sandbox, asyncio.Runner]
) -> Iterator[Path]:
    """The tree, for as long as the sandbox changes it."""
    rig, started, runner = sandbox
    targets = world.targets
    target = targets.exchange if race.careful is _write else targets.canary
    if race.swap == "folder_for_link":
        target = f"{targets.outside_folder}/race"
    program = Path(swapper.__file__).read_text()
    command = (PYTHON, "-I", "-c", program, race.swap, target)
    run = runner.run(rig.begin(started, *command, output=Output.PIPES, stdin=True))
    try:
        assert isinstance(run.stdout, int) and isinstance(run.stdin, int)
        assert os.read(run.stdout, 16) == b"ready\n", _complaint(run.stderr)
        yield started.spec.tree
    finally:
        assert isinstance(run.stdin, int)
        os.write(run.stdin, b"enough")
        ended = runner.run(finish(run)).exit
    assert ended.code == 0


def _complaint(stream: object) -> str:
    return os.read(stream, 4096).decode() if isinstance(stream, int) else ""


def _tries(enough: Callable[[], bool]) -> Iterator[None]:
    """So many, and on a busy machine more, until one of them came through unhindered."""
    last = time.monotonic() + PATIENCE_S
    tried = 0
    while tried < TRIES or (not enough() and time.monotonic() < last):
        yield
        tried += 1


@pytest.mark.parametrize("opener", [open_beneath, walk_beneath])
@pytest.mark.parametrize("race", RACES, ids=lambda race: race.name)
def test_the_host_is_never_led_out(
    race: Race,
    opener: Opener,
    outside: World,
    sandbox: tuple[Rig, Sandbox, asyncio.Runner],
) -> None:
    done: list[bool] = []
    with swapping(race, outside, sandbox) as tree:
        root = os.open(tree, os.O_PATH | os.O_DIRECTORY)
        try:
            files = TreeFiles(root, opener=opener)
            for _ in _tries(lambda: bool(done)):
                with contextlib.suppress(PathError):
                    assert not race.careful(files, outside)
                    done.append(True)
        finally:
            os.close(root)
    assert done, "it never worked, so nothing was tried"


@pytest.mark.parametrize(
    "race", [race for race in RACES if race.naive is not None], ids=lambda race: race.name
)
def test_looking_first_is_fooled(
    race: Race, outside: World, sandbox: tuple[Rig, Sandbox, asyncio.Runner]
) -> None:
    assert race.naive is not None
    until = time.monotonic() + NAIVE_S
    with swapping(race, outside, sandbox) as tree:
        while time.monotonic() < until:
            try:
                if race.naive(tree, outside):
                    return
            except OSError:
                continue
    pytest.fail("the race is not one: the naive way was not fooled")
