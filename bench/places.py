"""A folder to measure in, on the disk that matters, and gone afterwards."""

from __future__ import annotations

import argparse
import compileall
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import carrel
from bench.measuring import say
from carrel.config import load_settings
from carrel.linux import mounts
from carrel.trees.removal import remove_tree

_ENDING = (signal.SIGTERM, signal.SIGHUP)
MAKE_S = 60.0
"""Making an empty file system takes a second; the rest is for a loaded machine."""


def add_common_options(parser: argparse.ArgumentParser, rounds: int) -> None:
    parser.add_argument("--rounds", type=positive, default=rounds, metavar="N")
    parser.add_argument(
        "--folder",
        type=Path,
        default=None,
        help="where to make the temporary folder (default: on the data folder's disk)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")


def add_rehearsal_option(parser: argparse.ArgumentParser) -> None:
    """What is timed is done once before, untimed, unless it is only to be seen whether it runs."""
    parser.add_argument("--no-rehearsal", dest="rehearse", action="store_false")


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def default_folder() -> Path:
    """The usual temporary folder, unless the data folder is on another disk."""
    data = load_settings().data
    while not data.exists():
        data = data.parent
    usual = Path(tempfile.gettempdir())
    return usual if os.stat(usual).st_dev == os.stat(data).st_dev else data


@contextmanager
def workplace(folder: Path | None) -> Iterator[Path]:
    """Removed at the end, also after Ctrl-C, with whatever is still mounted in it."""
    place = Path(tempfile.mkdtemp(prefix="carrel-bench-", dir=folder or default_folder()))
    try:
        # The users of sandboxes pass through it.
        place.chmod(0o711)
        yield place
    finally:
        # Whoever is impatient now would only leave something behind.
        for number in (signal.SIGINT, *_ENDING):
            signal.signal(number, signal.SIG_IGN)
        say(f"removing {place}")
        for point in mounts_below(place):
            mounts.detach_all(point)
        remove_tree(place)


def run_main(main: Callable[[], None]) -> None:
    """A benchmark that is asked to end cleans up as after Ctrl-C. Our modules are compiled
    first, as those of an installed package are."""
    compileall.compile_dir(Path(carrel.__file__).parent, quiet=2)
    for number in _ENDING:
        signal.signal(number, _interrupt)
    try:
        main()
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(130)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def mounts_below(folder: Path) -> list[str]:
    """The last first. Our own folders have no characters that mount tables escape."""
    above = os.path.realpath(folder) + "/"
    lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    points = [line.split(" ")[4] for line in lines]
    return [point for point in points if point.startswith(above)][::-1]


@contextmanager
def xfs_volume(place: Path, size: int) -> Iterator[Path]:
    """A file system that shares blocks, in a file; root only. The loop device goes away
    with the mount."""
    image, point = place / "xfs.image", place / "xfs"
    with image.open("wb") as file:
        os.truncate(file.fileno(), size)
    point.mkdir()
    try:
        _run("mkfs.xfs", "-q", "-K", "-m", "reflink=1", str(image))
        _run("mount", "-o", "loop", str(image), str(point))
        try:
            yield point
        finally:
            mounts.detach_all(str(point))
    finally:
        with suppress(OSError):
            image.unlink()
            point.rmdir()


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True, timeout=MAKE_S)
