"""How fast a space on an image is, beside one with the host's toolchain and beside containers.

    python bench/environments.py [--files 1000] [--megabytes 121] [--databases 20] [--rounds 5]
        [--json]

The image is the same for all: two programs of this machine, with their libraries; engines have the
project in it, too. *By its Dockerfile* is a space of the folder itself, whose Dockerfile was built
before: what it stands on is found out anew each time. *Import* is of a larger image, as `podman
save` wrote it. *Processor time* says more than the clock where a machine has other work: that of
Carrel is all that its daemon and launcher used, that of podman only what its program waited for.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.containers import Engine, Unavailable, container_rivals, own_podman, write_image
from bench.databases import databases
from bench.measuring import Board, Spread, say, settle
from bench.own_spaces import Daemon, open_daemon
from bench.places import add_common_options, positive, run_main, workplace
from bench.projects import Shape, make_project
from bench.reporting import Report, machine
from bench.sandbox_rivals import SAID, WORDS, Rival, RivalFailed
from carrel.client import Space
from carrel.client.http import asking
from carrel.domain.errors import CarrelError

ON_IMAGE, ON_HOST = "carrel: first command on an image", "carrel: first command, host's toolchain"
BY_FILE = "carrel: first command by its Dockerfile"
FOLDER_HOST = "carrel: first command of the folder, host's toolchain"
EXEC_IMAGE, EXEC_HOST = "carrel: exec on an image", "carrel: exec, host's toolchain"
CONTAINED = {"podman": "carrel: exec in a container of podman"}
"""By the engine; beside its own `exec`."""
IMPORT, LOAD = "carrel: import an image", "podman load"
PROGRAMS = ("sh", "sleep")
PROCESSOR = "processor time: "
AT_ONCE = 5
"""Spaces and commands for one figure of processor time, which the kernel counts in hundredths."""
FILE_BYTES = 20_000
"""About what a file of a small Debian has."""


def main() -> None:
    options = parse()
    shown = {name: getattr(options, name) for name in ("files", "megabytes", "rounds")}
    with workplace(options.folder) as place:
        report = Report("environments", shown, machine(place))
        project, board = place / "project", Board()
        make_project(project, Shape(options.files, 4000))
        archive = place / "image.tar"
        write_image(archive, PROGRAMS)
        with (
            open_daemon(place / "data") as daemon,
            container_rivals(place, project) as (rivals, missing),
        ):
            daemon.base = daemon.client.make_base(str(project)).id
            image = daemon.client.images.take("bench", str(archive)).id
            contained = start_contained(daemon, image, missing)
            described = with_dockerfile(place, project, archive)
            by_file = built_before(daemon, described, missing)
            for number in range(options.rounds + 1):
                say(f"round {number} of {options.rounds}")
                settle()
                one_round(daemon, image, board, number)
                if by_file:
                    folder_round(daemon, described, board, number)
                for name, space in contained.items():
                    exec_times(space, CONTAINED[name], board, number)
                for rival in rivals:
                    try:
                        with board.timed(rival.name, number):
                            rival.run()
                    except RivalFailed as error:
                        missing[rival.name] = str(error)
            for space in contained.values():
                space.remove(force=True)
            # The first is a rehearsal.
            board.forget(0)
            tell(report, board, [one.name for one in rivals if one.name not in missing])
            for name, why in missing.items():
                report.skip(name, why)
            report.at_most("a second space's system", 128.0, "KiB", cost_of_another(daemon, image))
            processor_times(daemon, image, rivals, report)
            if options.databases:
                databases(place, daemon, report, options.databases, min(options.rounds, 3))
            importing(options, place, daemon, report)
        report.show(as_json=options.json)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--files", type=positive, default=1000, help="in the project")
    parser.add_argument("--megabytes", type=positive, default=121, help="of the imported image")
    parser.add_argument("--databases", type=int, default=20, help="spaces with PostgreSQL; 0: none")
    add_common_options(parser, rounds=5)
    return parser.parse_args()


def one_round(daemon: Daemon, image: str, board: Board, number: int) -> None:
    for name, again, more in (
        (ON_IMAGE, EXEC_IMAGE, {"image": image}),
        (ON_HOST, EXEC_HOST, {}),
    ):
        space, times = daemon.interactive(**more)
        board.add(name, number, times.interactive_s)
        exec_times(space, again, board, number)
        space.remove(force=True)


def with_dockerfile(place: Path, project: Path, archive: Path) -> Path:
    """A copy of the project with a Dockerfile of the same image."""
    described = place / "described"
    shutil.copytree(project, described, symlinks=True)
    shutil.copy(archive, described / "rootfs.tar")
    (described / "Dockerfile").write_text("FROM scratch\nADD rootfs.tar /\n")
    return described


def built_before(daemon: Daemon, described: Path, missing: dict[str, str]) -> bool:
    try:
        space = daemon.client.create(str(described), image="auto")
    except CarrelError as error:
        missing[BY_FILE] = str(error)
        return False
    shown = daemon.client.link.json(asking(f"/v1/spaces/{space.id}"))["image"]
    space.remove(force=True)
    if not shown["id"]:
        missing[BY_FILE] = " ".join(shown["notes"])
    return bool(shown["id"])


def folder_round(daemon: Daemon, described: Path, board: Board, number: int) -> None:
    for name, image in ((BY_FILE, "auto"), (FOLDER_HOST, "none")):
        space, times = daemon.interactive(project=str(described), image=image)
        board.add(name, number, times.interactive_s)
        space.remove(force=True)


def processor_times(daemon: Daemon, image: str, rivals: list[Rival], report: Report) -> None:
    board = Board()
    for number in range(4):
        for name, again, more in (
            (ON_IMAGE, EXEC_IMAGE, {"image": image}),
            (ON_HOST, EXEC_HOST, {}),
        ):
            begun = daemon.work_s()
            spaces = [daemon.interactive(**more)[0] for _ in range(AT_ONCE)]
            board.add(PROCESSOR + name, number, (daemon.work_s() - begun) / AT_ONCE)
            begun = daemon.work_s()
            for space in spaces:
                for _ in range(AT_ONCE):
                    expect(space)
            board.add(PROCESSOR + again, number, (daemon.work_s() - begun) / AT_ONCE**2)
            for space in spaces:
                space.remove(force=True)
        for rival in rivals:
            # A daemon's own work is not that of its program.
            if rival.name.startswith("podman"):
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                for _ in range(AT_ONCE):
                    rival.run()
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                board.add(PROCESSOR + rival.name, number, used / AT_ONCE)
    board.forget(0)
    report.add_times(board)
    for above, below in ((ON_IMAGE, ON_HOST), (EXEC_IMAGE, EXEC_HOST)):
        report.add_ratio(board, PROCESSOR + above, PROCESSOR + below)
    for rival in rivals:
        own = ON_IMAGE if rival.name.endswith(" run") else EXEC_IMAGE
        report.add_ratio(board, PROCESSOR + rival.name, PROCESSOR + own)


def exec_times(space: Space, name: str, board: Board, number: int) -> None:
    for _ in range(5):
        with board.timed(name, number):
            expect(space)


def start_contained(daemon: Daemon, image: str, missing: dict[str, str]) -> dict[str, Space]:
    """A space in a container of each engine that works here."""
    found = {}
    for name in CONTAINED:
        try:
            found[name] = daemon.client.create(base=daemon.base, image=image, runtime=name)
        except CarrelError as error:
            missing[CONTAINED[name]] = str(error)
    return found


def expect(space: Space) -> None:
    done = space.run(WORDS)
    if done.stdout != SAID:
        raise RuntimeError(f"the command said {done}")


def tell(report: Report, board: Board, rivals: list[str]) -> None:
    report.add_times(board)
    report.at_most(ON_IMAGE, 1.3, "x", board.ratio(ON_IMAGE, ON_HOST))
    report.at_most(EXEC_IMAGE, 1.2, "x", board.ratio(EXEC_IMAGE, EXEC_HOST))
    if BY_FILE in board:
        report.at_most(BY_FILE, 1.3, "x", board.ratio(BY_FILE, FOLDER_HOST))
    for name in rivals:
        own = ON_IMAGE if name.endswith(" run") else EXEC_IMAGE
        ratio = board.ratio(name, own)
        if name.endswith(" run"):
            report.at_least(name, 8.0, "x", ratio)
        else:
            report.add_ratio(board, own, name)
        contained = CONTAINED.get(name.removesuffix(" exec"), "")
        if contained in board:
            report.at_most(contained, 0.1, "x", board.ratio(contained, name))


def cost_of_another(daemon: Daemon, image: str) -> Spread:
    """In KiB, of what a space has on disk for its image before anything is written there."""
    found = []
    for _ in range(3):
        space = daemon.client.create(base=daemon.base, image=image)
        expect(space)
        folder = daemon.data / "spaces" / space.id / "system"
        paths = [folder / name for name in ("upper", "work")]
        told = subprocess.run(
            ["du", "-sk", *paths], capture_output=True, text=True, check=True, timeout=60
        )
        found.append(float(sum(int(line.split()[0]) for line in told.stdout.splitlines())))
        space.remove(force=True)
    return Spread.of(found)


def importing(options: argparse.Namespace, place: Path, daemon: Daemon, report: Report) -> None:
    """The same archive, each time into a store that has nothing of it."""
    board, folder = Board(), place / "importing"
    folder.mkdir()
    try:
        with own_podman(folder) as engine:
            archive = saved_image(engine, folder, options.megabytes << 20)
            for number in range(3):
                settle()
                with board.timed(LOAD, number):
                    engine.ask("load", "--quiet", "--input", str(archive))
                engine.ask("rmi", "--force", "--all")
                settle()
                with board.timed(IMPORT, number):
                    daemon.client.images.take("large", str(archive))
                daemon.client.images.remove("large")
    except Unavailable as error:
        report.skip(IMPORT, str(error))
        return
    report.add_times(board)
    report.at_most(IMPORT, 2.0, "x", board.ratio(IMPORT, LOAD))


def saved_image(engine: Engine, folder: Path, size: int) -> Path:
    content = folder / "root.tar"
    with tarfile.open(content, "w") as tar:
        for number in range(size // FILE_BYTES):
            path = folder / "file"
            path.write_bytes(os.urandom(FILE_BYTES // 4) * 4)
            tar.add(path, f"usr/share/{number % 300}/{number}")
    engine.ask("import", str(content), "localhost/large:1")
    saved = folder / "saved.tar"
    engine.ask("save", "--quiet", "--output", str(saved), "localhost/large:1")
    engine.ask("rmi", "--force", "--all")
    return saved


if __name__ == "__main__":
    run_main(main)
