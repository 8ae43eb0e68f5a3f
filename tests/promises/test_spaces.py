"""docs/spaces.md, docs/data.md and docs/sandboxes.md, from the host and from inside."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import carrel
from carrel.client.spaces import Space
from carrel.domain.limits import Limits
from tests.accounts import Account
from tests.daemon.rig import ANSWER_S, LOOK_S, Daemon, fresh_daemon
from tests.trees.again import run_again
from tests.volumes import volume

DRIVERS = ("overlay", "copy")
NEAR, TRIES = 70_000_000, 8
"""What a look each second lets through is more, however fast the machine is."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    found = tmp_path / "project"
    (found / "src").mkdir(parents=True)
    (found / "src" / "a.py").write_text("a\n")
    return found


def tree(space: Space) -> Path:
    """As docs/spaces.md says, `path` of a space is its tree on the host."""
    return Path(space.info.path)


def writes(space: Space, script: str) -> None:
    """What is done on the host is seen inside before anything else is asked of Carrel; the kernel
    tells Carrel of it, which takes some milliseconds."""
    waiting = f"for _ in $(seq 100); do ({script}) 2>/dev/null && exit; sleep 0.05; done; {script}"
    done = space.run(["sh", "-c", waiting], timeout_s=ANSWER_S)
    assert done.code == 0, done


@pytest.mark.parametrize("driver", DRIVERS)
def test_what_is_edited_on_the_host_is_the_agents_too(
    client: carrel.Client, project: Path, driver: str
) -> None:
    if os.geteuid() != 0 and driver == "overlay":
        pytest.skip("an ordinary user's overlays are not seen on the host")
    edits_on_the_host(client.create(project, driver=driver))


def edits_on_the_host(space: Space) -> None:
    on_host = tree(space)
    # A new file, one that is saved by rename, and some in new folders.
    (on_host / "new.txt").write_text("one\n")
    (on_host / "src" / ".a.py.tmp").write_text("b\n")
    (on_host / "src" / ".a.py.tmp").rename(on_host / "src" / "a.py")
    (on_host / "deep" / "er").mkdir(parents=True)
    (on_host / "deep" / "er" / "file").write_text("two\n")
    (on_host / "src" / "link").symlink_to("a.py")
    writes(space, "echo more >> new.txt && echo more >> src/a.py && echo more >> deep/er/file")
    writes(space, "chmod 700 new.txt deep && touch deep/x deep/er/x && rm src/link")
    assert (on_host / "src" / "a.py").read_text() == "b\nmore\n"
    # A folder with nothing in it.
    (on_host / "empty").mkdir()
    writes(space, "touch empty/made")
    (on_host / "src" / "empty").mkdir()
    writes(space, "touch src/empty/made")
    space.remove(force=True)


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root copies with owners")
def test_what_is_copied_with_its_owners_is_the_agents_too(
    client: carrel.Client, project: Path, tmp_path: Path, driver: str
) -> None:
    """`cp -a`, `rsync -a` and `tar` say only at the end whose a file or folder is, and that of the
    tree's own folder as well."""
    for number in range(100):
        (tmp_path / "stuff" / f"{number}" / "in").mkdir(parents=True)
        (tmp_path / "stuff" / f"{number}" / "in" / "file").touch()
    os.chown(tmp_path / "stuff", 4321, 4321)
    space = client.create(project, driver=driver)
    subprocess.run(["cp", "-a", f"{tmp_path}/stuff/.", tree(space)], check=True)
    everything = '[ -z "$(find . ! -user $(id -u))" ] && touch top 7/in/new && rm 9/in/file'
    writes(space, everything)
    # And what is there already.
    os.chown(tree(space) / "src" / "a.py", 4321, 4321)
    writes(space, "echo more >> src/a.py")
    space.remove(force=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes file systems")
def test_the_same_on_btrfs(project: Path) -> None:
    """Whose free room tells late of what was written, and whose trees are another user's."""
    if shutil.which("mkfs.btrfs") is None:
        pytest.skip("needs btrfs-progs")
    with volume("btrfs") as folder, running(folder / "data") as client:
        edits_on_the_host(client.create(project, driver="btrfs"))
        copied = client.create(project, driver="btrfs")
        subprocess.run(["cp", "-a", f"{project}/.", tree(copied)], check=True)
        writes(copied, "touch top src/new && echo more >> src/a.py")
        copied.remove(force=True)
        space = client.create(None, limits=Limits(disk_bytes=20_000_000))
        assert space.info.driver == "btrfs"
        script = "head -c 200M /dev/zero > f; sleep 60"
        ended = space.run(["sh", "-c", script], timeout_s=10).run.exit
        assert ended is not None and ended.reason == "disk"
        space.remove(force=True)
        with pytest.raises(carrel.errors.SandboxUnavailable) as refused:
            client.create(None, runtime="process")
        assert "bubblewrap" in refused.value.hint


@contextlib.contextmanager
def running(data: Path) -> Iterator[carrel.Client]:
    """What it leaves goes with the volume that it is on."""
    daemon = Daemon(data, listen=None).start()
    try:
        with carrel.Client(data=data, autostart=False) as client:
            yield client
    finally:
        daemon.close()


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_project_is_seen_at_its_own_path(
    client: carrel.Client, project: Path, driver: str
) -> None:
    """What is written there is the space's, and nothing of the project changes."""
    space = client.create(project, driver=driver)
    assert space.run(["sh", "-c", f"echo x > {project}/src/b.py"]).code == 0
    assert space.files.read("src/b.py") == b"x\n"
    assert space.run(["cat", "/workspace/src/b.py"]).stdout == "x\n"
    assert os.listdir(project / "src") == ["a.py"]
    space.remove(force=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has other files than a space's own")
def test_nothing_beside_the_tree_is_given_away(
    client: carrel.Client, project: Path, daemon: Daemon
) -> None:
    """Neither through links that the space has made, nor what has another name elsewhere."""
    outside = daemon.data.parent / "outside"
    outside.mkdir()
    (outside / "kept").write_text("mine\n")
    space = client.create(project, driver="copy")
    on_host = tree(space)
    assert space.run(["ln", "-s", str(outside), "src/out"]).code == 0
    os.link(outside / "kept", on_host / "src" / "kept")
    (on_host / "src" / "out" / "through").write_text("mine\n")
    (on_host / "src" / "given").write_text("yours\n")
    os.chmod(on_host / "src" / "given", 0o4755)
    writes(space, "echo more >> src/given")
    assert {one.stat().st_uid for one in (outside, *outside.iterdir())} == {0}
    assert not os.stat(on_host / "src" / "given").st_mode & 0o6000
    space.remove(force=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has other files than a space's own")
def test_what_is_edited_while_no_daemon_runs_is_given_later(project: Path) -> None:
    with fresh_daemon(listen=None) as daemon:
        with carrel.Client(data=daemon.data, autostart=False) as client:
            space = client.create(project)
            name, on_host = space.id, tree(space)
        daemon.stop()
        (on_host / "src" / "meanwhile").write_text("one\n")
        daemon.start()
        owner = on_host.stat().st_uid
        until = time.monotonic() + ANSWER_S
        while (on_host / "src" / "meanwhile").stat().st_uid != owner:
            assert time.monotonic() < until, name
            time.sleep(LOOK_S)


def test_a_fast_writer_is_stopped_near_its_disk_limit(client: carrel.Client) -> None:
    """On a machine that has time for it: one that is busy with other things looks later."""
    sizes: list[int] = []
    while min(sizes, default=NEAR) >= NEAR:
        assert len(sizes) < TRIES, sizes
        space = client.create(None, limits=Limits(disk_bytes=20_000_000))
        # Some 150 MB in a second: what a disk takes, and less than memory does.
        script = "for _ in $(seq 50); do head -c 4M /dev/zero >> f; sleep 0.02; done; sleep 60"
        done = space.run(["sh", "-c", script], timeout_s=ANSWER_S)
        assert done.code != 0
        sizes.append(space.files.stat("f").size)
        space.remove(force=True)


def test_a_file_tells_what_a_space_is(
    client: carrel.Client, daemon: Daemon, project: Path, tmp_path: Path
) -> None:
    """It is YAML that people read; the space itself never looks at it."""
    odd = tmp_path / os.fsdecode(b"od\xffd: [name]")
    project.rename(odd)
    space = client.create(
        odd,
        name="told",
        labels={"team": "blue"},
        env={"API_TOKEN": "planted-secret", "LEVEL": "yes"},
        description="two\nlines",
        limits=Limits(pids=100),
    )
    file = daemon.data / "spaces" / space.id / "config.yaml"
    first, *lines = file.read_text().splitlines()
    assert first.startswith("#") and "never read back" in first
    assert file.stat().st_mode & 0o777 == 0o600
    told = importlib.import_module("yaml").safe_load("\n".join(lines))
    assert told["asked"]["labels"] == {"team": "blue"} and "runtime" not in told["asked"]
    resolved = told["resolved"]
    assert resolved["name"] == "told" and resolved["runtime"] == space.info.runtime != "auto"
    assert resolved["driver"] == space.info.driver and resolved["limits"]["pids"] == 100
    assert resolved["env"] == {"API_TOKEN": "<hidden>", "LEVEL": "yes"}
    assert resolved["description"] == "two\nlines" and resolved["network"] == "none"
    assert resolved["project"]["kind"] == "folder" and "planted-secret" not in file.read_text()
    # Whenever something changes, and never back.
    space.update(labels={"team": "red"})
    assert "red" in file.read_text()
    file.write_text("resolved: {runtime: process}\n")
    assert space.run(["true"]).code == 0
    space.refresh()
    assert space.info.runtime == resolved["runtime"]
    space.remove(force=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run")
def test_the_same_as_an_ordinary_user(ordinary_user: Account, data: Path) -> None:
    run_again(__file__, ordinary_user, data)
