"""Finding a pipe again."""

from __future__ import annotations

import os
import subprocess

from carrel.linux import pipes

WAIT_S = 30.0


def _inode(descriptor: int) -> int:
    return os.fstat(descriptor).st_ino


def test_a_pipe_is_found_in_the_process_that_has_it() -> None:
    read, write = os.pipe()
    inode = _inode(read)
    with subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE, stdout=write) as process:
        try:
            os.close(write)
            os.close(read)
            found = pipes.open_pipe(inode, [os.getpid(), process.pid])
            assert found is not None and _inode(found) == inode
            assert not os.get_blocking(found) and not os.get_inheritable(found)
            os.close(found)
            assert pipes.open_pipe(inode, [os.getpid()]) is None
        finally:
            process.kill()
            process.wait(WAIT_S)
    assert pipes.open_pipe(inode, [process.pid]) is None


def test_one_that_its_owner_shut_is_opened_nevertheless() -> None:
    read, write = os.pipe()
    try:
        os.fchmod(read, 0)
        found = pipes.open_pipe(_inode(read), [os.getpid()])
        assert found is not None
        os.close(found)
    finally:
        os.close(read)
        os.close(write)
