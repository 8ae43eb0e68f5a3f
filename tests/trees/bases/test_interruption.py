"""Builds that are killed, and builds that meet one another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from carrel.domain.projects import BaseRequest, Progress
from carrel.domain.trees import Base
from carrel.trees.bases import jobs
from carrel.trees.bases import store as store_module
from carrel.trees.bases.store import BaseStore
from tests.trees.bases.helpers import left_in_staging, picture, request, shown, write

SOURCE = Path(__file__).resolve().parents[3]
WAIT_S = 60.0
"""For a process that builds a small project on a busy machine."""

_BUILD = """
import os, signal, sys
from pathlib import Path
from carrel.domain.projects import BaseRequest, Project, ProjectKind
from carrel.trees.bases import jobs
from carrel.trees.bases.store import BaseStore

jobs._TOGETHER = 4
store = BaseStore(Path(sys.argv[1]), verify_after_s=0)
limit = int(sys.argv[3])
take = jobs.Filler._take
count = 0

def counted(self, filled, task, result):
    global count
    take(self, filled, task, result)
    count += len(task)
    if count >= limit > 0:
        os.kill(os.getpid(), signal.SIGKILL)

jobs.Filler._take = counted
base = store.build(BaseRequest(Project(ProjectKind.FOLDER, sys.argv[2])))
print(base.base_id, count)
"""


def build_in_process(data: Path, project: Path, kill_after: int = 0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _BUILD, str(data), str(project), str(kill_after)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE / "src")},
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    with process:
        output, _ = process.communicate(timeout=WAIT_S)
        return process.returncode, output


@pytest.fixture
def big(project: Path) -> Path:
    for number in range(200):
        write(project / f"many/{number % 10}/{number}", os.urandom(500))
    os.link(project / "many/0/0", project / "many/1/linked")
    return project


def test_a_killed_build_is_carried_on(data: Path, big: Path) -> None:
    code, _ = finish(build_in_process(data, big, kill_after=100))
    assert code == -signal.SIGKILL
    assert len(left_in_staging(data)) > 0
    assert BaseStore(data).list() == []
    # What changed meanwhile is read again, what went is gone.
    write(big / "many/0/0", "changed")
    (big / "many/0/10").unlink()
    code, output = finish(build_in_process(data, big))
    assert code == 0
    base_id, copied = output.split()
    total = sum(1 for path in big.rglob("*") if path.is_file())
    assert int(copied) <= total - 80
    base = BaseStore(data).get(base_id)
    assert shown(base) == picture(big)
    assert left_in_staging(data) == []


def test_a_build_killed_again_and_again(data: Path, big: Path) -> None:
    for kill_after in (30, 1, 60, 80):
        code, _ = finish(build_in_process(data, big, kill_after))
        assert code == -signal.SIGKILL
    store = BaseStore(data)
    assert shown(store.build(request(big))) == picture(big)


def test_a_killed_thin_build_is_carried_on(data: Path, big: Path) -> None:
    store = BaseStore(data)
    first = store.build(request(big))
    for number in range(40):
        write(big / f"new/{number}", str(number))
    (big / "many/3/3").unlink()
    code, _ = finish(build_in_process(data, big, kill_after=20))
    assert code == -signal.SIGKILL
    (big / "new/7").unlink()
    second = store.build(request(big))
    assert len(second.layers) == 2
    assert shown(second) == picture(big)
    assert shown(first) != shown(second)
    assert left_in_staging(data) == []


def test_what_a_killed_build_stored_is_not_believed_when_it_was_cut_short(
    data: Path, big: Path
) -> None:
    finish(build_in_process(data, big, kill_after=150))
    for path in (data / "bases/.staging").glob("*/base/layer/many/*/*"):
        path.write_bytes(b"")
    assert shown(BaseStore(data).build(request(big))) == picture(big)


def test_an_interrupt_keeps_what_was_done(store: BaseStore, data: Path, big: Path) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.stage == "checking":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.build(request(big), interrupt)
    assert len(left_in_staging(data)) == 1
    copied: list[Progress] = []
    base = store.build(request(big), copied.append)
    assert shown(base) == picture(big)
    assert max(p.bytes_done for p in copied if p.stage == "copying") == 0
    assert left_in_staging(data) == []


def test_an_interrupt_while_threads_copy(
    store: BaseStore, big: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_INTERVAL_S", 0.0)

    def interrupt(progress: Progress) -> None:
        if progress.stage == "copying" and progress.done:
            raise KeyboardInterrupt

    write(big / "huge", os.urandom(1 << 20) * 50)
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        store.build(request(big), interrupt)
    assert set(threading.enumerate()) <= before
    assert shown(store.build(request(big))) == picture(big)


def test_staging_of_long_ago_is_removed(data: Path, big: Path) -> None:
    finish(build_in_process(data, big, kill_after=50))
    BaseStore(data)
    assert len(left_in_staging(data)) > 0
    old = time.time() - store_module.STALE_STAGING_S - 60
    for path in (data / "bases/.staging").rglob("*"):
        os.utime(path, (old, old), follow_symlinks=False)
    BaseStore(data)
    assert left_in_staging(data) == []


def test_two_processes_build_it_once(data: Path, big: Path) -> None:
    builders = [build_in_process(data, big) for _ in range(3)]
    results = [finish(builder) for builder in builders]
    assert [code for code, _ in results] == [0, 0, 0]
    ids, counts = zip(*(output.split() for _, output in results), strict=True)
    assert len(set(ids)) == 1
    # One of them stored all of it, the others nothing but what may have changed since.
    assert len(BaseStore(data).list()) == 1
    assert left_in_staging(data) == []
    assert max(map(int, counts)) >= 200


def test_a_thread_waits_for_another_and_says_so(data: Path, big: Path) -> None:
    store = BaseStore(data)
    reached, go_on = threading.Event(), threading.Event()
    waiting = threading.Event()
    bases: list[Base] = []

    def slow(progress: Progress) -> None:
        if progress.stage == "copying" and not reached.is_set():
            reached.set()
            assert go_on.wait(WAIT_S)

    def watched(progress: Progress) -> None:
        if progress.stage == "waiting":
            waiting.set()

    asked: BaseRequest = request(big)
    first = threading.Thread(target=lambda: bases.append(store.build(asked, slow)))
    first.start()
    assert reached.wait(WAIT_S)
    second = threading.Thread(target=lambda: bases.append(store.build(asked, watched)))
    second.start()
    assert waiting.wait(WAIT_S)
    go_on.set()
    first.join(WAIT_S)
    second.join(WAIT_S)
    assert len({base.base_id for base in bases}) == 1
    assert len(bases) == 2
    assert len(store.list()) == 1


def test_different_projects_with_the_same_content_at_once(data: Path, big: Path) -> None:
    copy = big.parent / (big.name + "-copy")
    try:
        subprocess.run(["cp", "-a", str(big), str(copy)], check=True, timeout=WAIT_S)
        builders = [build_in_process(data, folder) for folder in (big, copy)]
        results = [finish(builder) for builder in builders]
        assert len({output.split()[0] for _, output in results}) == 1
        assert left_in_staging(data) == []
    finally:
        subprocess.run(["rm", "-rf", str(copy)], check=True, timeout=WAIT_S)
