"""The shared fixtures do what the other tests rely on."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.accounts import PYTHON, Account, run_as
from tests.folders import mounts_below, remove_folder


def test_other_users_pass_through_the_data_folder(data: Path, ordinary_user: Account) -> None:
    (data / "note").write_text("seen")
    (data / "note").chmod(0o644)
    assert run_as(ordinary_user, ["cat", str(data / "note")]).stdout == "seen"


def test_the_ordinary_user_is_unprivileged(ordinary_user: Account) -> None:
    result = run_as(ordinary_user, ["sh", "-c", "id -u; id -g; id -G; cat /etc/shadow"])
    uid, gid, groups = result.stdout.splitlines()
    assert (int(uid), int(gid)) == ordinary_user
    assert os.geteuid() != 0 or groups == gid
    assert "denied" in result.stderr


def test_the_ordinary_user_has_python_with_this_project(data: Path, ordinary_user: Account) -> None:
    os.chown(data, *ordinary_user)
    script = "import carrel, os, sys; print(os.getuid(), carrel.__version__, os.environ['X'])"
    result = run_as(ordinary_user, [PYTHON, "-c", script], env={"X": "y"}, cwd=data)
    assert result.stdout.split()[::2] == [str(ordinary_user.uid), "y"], result.stderr


def test_removal_copes_with_read_only_folders_and_spares_what_links_name(data: Path) -> None:
    outside = data / "outside"
    outside.mkdir(mode=0o500)
    victim = data / "victim"
    (victim / "deep" / "deeper").mkdir(parents=True)
    (victim / "deep" / "deeper" / "file").write_text("x")
    (victim / "link").symlink_to(outside)
    (victim / "deep" / "deeper").chmod(0o500)
    (victim / "deep").chmod(0o000)
    remove_folder(victim)
    assert not victim.exists()
    assert outside.stat().st_mode & 0o777 == 0o500


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts on the host")
def test_removal_unmounts_and_never_deletes_through_a_mount(data: Path) -> None:
    kept = data / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    point = data / "victim" / "a b\tc"
    point.mkdir(parents=True)
    subprocess.run(["mount", "--bind", kept, point], check=True)
    assert mounts_below(data) == [str(point)]
    remove_folder(data / "victim")
    assert mounts_below(data) == []
    assert (kept / "file").read_text() == "x"


@pytest.mark.xdist_group("alone")
def test_a_worker_names_the_group_of_a_test(request: pytest.FixtureRequest) -> None:
    """Else tests that share what is dear, or must not meet, go to any worker."""
    shared_out = getattr(request.config.option, "loadgroup", False)
    assert request.node.nodeid.endswith("@alone") == shared_out
