"""The content of the hostile suite runs when git is used without care: so the suite can fail."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.review.conftest import Repository
from tests.review.test_hostile_git import BEGIN, CONFIGURE, CONFIGURED, HOOKS, PLANTED

GIT_S = 30.0
COMMIT, ADD, STATUS, FETCH = "$G commit -qam m", "git add -A", "git status", "git fetch origin"
ASK = "printf 'protocol=http\\nhost=x\\n\\n' | git credential fill"
FIRES = {
    **{"core.fsmonitor": STATUS, "include.path": STATUS, "includeIf": STATUS},
    **{"core.pager": "git log", "core.editor": "$G commit -q --allow-empty"},
    **{"core.askPass": ASK, "credential.helper": ASK},
    **{"core.sshCommand": FETCH, "core.gitProxy": FETCH, "ext remote": FETCH, "remote.vcs": FETCH},
    **{"remote.uploadpack": FETCH, "url.insteadOf": "git fetch /nowhere"},
    "core.alternateRefsCommand": "git init -q alt; $G -C alt commit -q --allow-empty -m m;"
    " echo $PWD/alt/.git/objects > .git/objects/info/alternates; git init -q two;"
    " $G -C two commit -q --allow-empty -m n; git fetch ./two",
    **{"filter.clean": ADD, "filter.process": ADD},
    "filter.smudge": "rm a.txt; git checkout a.txt",
    **{"diff.external": "git diff", "diff.command": "git diff", "diff.textconv": "git diff"},
    "merge.driver": f"{COMMIT}; git checkout -q -b side HEAD~1; echo s >> a.txt; $G commit -qam s;"
    " $G merge --no-edit main",
    "difftool and mergetool": "git difftool -y -t x",
    **{"gpg.program": COMMIT, "gpg.ssh.defaultKeyCommand": COMMIT},
    "aliases": "git x",
    "a promisor": "git cat-file -p 1111111111111111111111111111111111111111",
    "trailers": "echo m | git interpret-trailers --trailer x=1",
    "interactive.diffFilter": "echo q | git -c color.ui=always add -p",
    "tar and browsers": "git web--browse -t x http://localhost",
    **{"core.hooksPath": COMMIT, "hooks of every name": COMMIT, "config.worktree": STATUS},
    **{"core.attributesFile": ADD, "info/attributes": "git diff"},
    "submodules that run": "git -C sub status",
    "a promised pack": "git log -p",
}
"""What makes git run what was planted."""
CANNOT = {
    "uploadpack.packObjectsHook": "git obeys it in a person's own settings only",
    "maintenance": "an older git does not know the hook",
    "alternates": "git leaves out a folder that has no objects",
    "submodules that lead out": "git refuses such names",
}
"""What plants a command that git of this version does not run by itself."""


def test_every_command_is_tried() -> None:
    plants = {**CONFIGURED, **PLANTED}
    commands = {name for name, text in plants.items() if "$BAD" in text or "PROGRAM" in text}
    others = {"include.path", "includeIf", "core.hooksPath", "hooks of every name"}
    assert commands | others == {*FIRES, *CANNOT}


@pytest.mark.parametrize("kind", FIRES)
def test_it_runs_where_git_is_used_without_care(
    repository: Repository, tmp_path: Path, kind: str
) -> None:
    mark, place = tmp_path / "mark", repository.path
    plant = PLANTED.get(kind) or CONFIGURE.format(text=CONFIGURED[kind])
    begin = BEGIN.format(mark=mark, hooks=" ".join(HOOKS))
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_TERMINAL_PROMPT": "0"}
    env |= {"GIT_CONFIG_NOSYSTEM": "1", "TERM": "xterm"}
    fires = f"{begin}{plant}\nset +e\nrm -f {mark}\n{FIRES[kind]}"
    # A pager needs a terminal.
    words = ["script", "-qefc", "exec sh .git/fires", "/dev/null"]
    (place / ".git/fires").write_text(fires)
    subprocess.run(words, cwd=place, env=env, stdin=subprocess.DEVNULL, timeout=GIT_S)
    assert mark.exists()
