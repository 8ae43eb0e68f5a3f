"""Carrel's trees, for the benchmarks: made, used in a sandbox, and dropped."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.measuring import say
from carrel.app import App, open_app
from carrel.config import Settings
from carrel.domain.errors import CarrelError
from carrel.domain.ids import new_id
from carrel.domain.projects import BaseRequest, Progress, Project, ProjectKind
from carrel.domain.runtimes import Command, LocalRuntime, Sandbox, SandboxSpec
from carrel.domain.trees import Base, Tree, TreeDriver, TreeMount, TreeRequest
from carrel.linux import mounts
from carrel.linux.libc import call
from carrel.trees.removal import remove_tree

_SPEAK_EVERY_S = 3.0

RunIn = Callable[..., Awaitable[str]]
"""Runs the words it is given as a command, and gives what that wrote."""


@dataclass
class Trees:
    """One data folder, one driver, and the trees that stand now."""

    app: App
    driver: TreeDriver
    standing: list[Tree] = field(default_factory=list)

    def base(self, project: Path) -> Base:
        request = BaseRequest(Project(ProjectKind.FOLDER, str(project)))
        return self.app.bases.build(request, _speak_seldom())

    def create(self, base: Base, some_file: str) -> Tree:
        """From nothing to a file that was read through it."""
        tree_id = new_id("sp")
        folder = self.app.settings.data / "spaces" / tree_id
        folder.mkdir(mode=0o711)
        owner = self.app.identities.take(tree_id)
        tree = self.driver.create(TreeRequest(tree_id, base, folder, owner))
        self.standing.append(tree)
        root = self.driver.open_root(tree)
        try:
            file = os.open(some_file, os.O_RDONLY | os.O_CLOEXEC, dir_fd=root)
            try:
                os.read(file, 1)
            finally:
                os.close(file)
        finally:
            os.close(root)
        return tree

    def drop(self, tree: Tree) -> None:
        """All that is left of it is its empty folder, which goes too."""
        self.driver.drop(tree)
        self.app.identities.give_back(tree.tree_id, tree.owner)
        tree.folder.rmdir()
        self.standing.remove(tree)

    def drop_all(self) -> None:
        for tree in self.standing[::-1]:
            self.driver.drop(tree)
            remove_tree(tree.folder)
        self.standing.clear()

    def blocks(self, tree: Tree) -> int:
        """The bytes of disk that the space takes, the tree's content itself apart."""
        return 512 * sum(status.st_blocks for status in _own_entries(tree.folder))


@asynccontextmanager
async def open_trees(data: Path, driver: str) -> AsyncIterator[Trees]:
    """Afterwards no tree is left and the launcher has ended."""
    async with open_app(Settings(data=data)) as app:
        trees = Trees(app, await app.driver(driver))
        try:
            yield trees
        finally:
            trees.drop_all()
            app.launcher.shutdown(force=True)


@asynccontextmanager
async def sandbox_on(trees: Trees, tree: Tree) -> AsyncIterator[RunIn]:
    """Gives a function that runs a command in a warm sandbox on the tree, to its end."""
    runtime = await trees.app.runtime()
    with trees.driver.mount(tree) as shown:
        spec = SandboxSpec(tree.tree_id, tree.folder, tree.path, tree.owner)
        sandbox = await runtime.start(spec, shown)
        try:
            await run_to_end(runtime, sandbox, shown, "true")

            async def run(*argv: str) -> str:
                return await run_to_end(runtime, sandbox, shown, *argv)

            yield run
        finally:
            await runtime.stop(sandbox)
            for name in ("home", "tmp", "hub", "runs"):
                remove_tree(tree.folder / name)


async def run_to_end(runtime: LocalRuntime, sandbox: Sandbox, shown: TreeMount, *argv: str) -> str:
    """What it wrote. Raises RuntimeError when it fails."""
    run = await runtime.run(sandbox, shown, Command(argv))
    try:
        ended = await run.wait()
        assert isinstance(run.stdout, Path) and isinstance(run.stderr, Path)
        if ended.code != 0:
            raise RuntimeError(f"{argv} ended with {ended}: {run.stderr.read_text()}")
        return run.stdout.read_text()
    finally:
        run.close()


@contextmanager
def bare_mount(base: Base, folder: Path) -> Iterator[float]:
    """The kernel's part alone: three folders and one call. Gives the seconds it took; root
    only. Whom the files belong to is left as it is."""
    lowers = ":".join(map(str, base.layers))
    begun = time.perf_counter()
    folder.mkdir()
    for name in ("upper", "work", "project"):
        os.mkdir(folder / name)
    options = f"lowerdir={lowers},upperdir={folder}/upper,workdir={folder}/work"
    call("mount", b"bench", os.fsencode(folder / "project"), b"overlay", 0, options.encode())
    taken = time.perf_counter() - begun
    try:
        yield taken
    finally:
        mounts.detach_all(str(folder / "project"))
        remove_tree(folder)


async def sandboxes_work(app: App) -> str:
    """Empty, or why no sandbox can be had here."""
    try:
        await app.runtime()
    except CarrelError as error:
        return str(error)
    return ""


def _own_entries(folder: Path) -> Iterator[os.stat_result]:
    """Without entering another file system."""
    status = folder.lstat()
    yield status
    for parent, names, files in os.walk(folder):
        for name in [*names, *files]:
            entry = os.lstat(os.path.join(parent, name))
            if entry.st_dev == status.st_dev:
                yield entry
            else:
                names.remove(name)


def _speak_seldom() -> Callable[[Progress], None]:
    last = time.monotonic()

    def speak(progress: Progress) -> None:
        nonlocal last
        if time.monotonic() - last > _SPEAK_EVERY_S:
            last = time.monotonic()
            say(f"  {progress.stage}: {progress.done:,} of {progress.total:,}")

    return speak
