from __future__ import annotations

import os
from pathlib import Path

from carrel.linux.libc import AT_FDCWD
from carrel.linux.statx import ROW, StatBatch, row_of, unpack_row


def test_rows_say_what_lstat_says(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 12345)
    (tmp_path / "link").symlink_to("nowhere")
    os.link(tmp_path / "file", tmp_path / "hard")
    os.utime(tmp_path / "file", ns=(1, -1_500_000_001))
    os.mkfifo(tmp_path / "pipe")
    names = [b"file", b"link", b"hard", b"pipe", b"."]
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        answers = StatBatch().run(fd, names, os.fstat(fd).st_dev)
    finally:
        os.close(fd)
    assert answers.failed == []
    assert answers.foreign == {}
    for index, name in enumerate(names):
        status = os.lstat(os.path.join(os.fsencode(tmp_path), name))
        row = unpack_row(answers.rows, index)
        assert row == row_of(status)
        assert (row.mtime_ns, row.ctime_ns) == (status.st_mtime_ns, status.st_ctime_ns)


def test_what_is_missing_and_what_is_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    paths = [b"nothing", os.fsencode(tmp_path / "file"), b"/proc/self", b"", b"x" * 5000]
    device = tmp_path.stat().st_dev
    answers = StatBatch().run(AT_FDCWD, paths, device)
    assert answers.failed == [0, 3, 4]
    assert answers.rows[:ROW] == bytes(ROW)
    assert answers.foreign == {2: os.lstat("/proc/self").st_dev}


def test_more_than_one_batch(tmp_path: Path) -> None:
    names = [b"%d" % number for number in range(5000)]
    for name in names[::2]:
        (tmp_path / name.decode()).write_bytes(name)
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        answers = StatBatch().run(fd, names, os.fstat(fd).st_dev)
    finally:
        os.close(fd)
    assert answers.failed == list(range(1, 5000, 2))
    sizes = [unpack_row(answers.rows, index).size for index in range(0, 5000, 2)]
    assert sizes == [len(name) for name in names[::2]]
