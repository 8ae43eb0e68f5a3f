"""Plain folders as projects: shown by their real path, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from carrel.domain.errors import TreeUnavailable
from carrel.domain.trees import Owner
from carrel.trees.host_folders import PlainProjects

OWN = Owner(os.geteuid(), os.getegid())


def test_a_path_that_became_a_link_is_not_shown(tmp_path: Path) -> None:
    """At any step of it: to a sandbox the target would look like the project."""
    project = tmp_path / "above" / "project"
    project.mkdir(parents=True)
    projects = PlainProjects()
    assert projects.mount(project, OWN).path == project
    for step in (project, project.parent):
        step.rename(tmp_path / "elsewhere")
        step.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(TreeUnavailable):
            projects.mount(project, OWN)
        step.unlink()
        (tmp_path / "elsewhere").rename(step)
    assert projects.mount(project, OWN).path == project
