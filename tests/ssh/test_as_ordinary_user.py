"""The same without root. OpenSSH's programs want an account with a name, so this one has one, in a
mount namespace of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.accounts import PYTEST, SOURCE, Account, interpreter_for
from tests.sampling import EXHAUSTIVE
from tests.ssh.conftest import as_root

TIMEOUT_S = 280.0
"""For a machine that is busy."""
SAMPLE = (
    "test_clients.py::test_commands",
    "test_clients.py::test_a_terminal_in_an_image",
    "test_clients.py::test_an_image_is_what_one_comes_into",
    "test_clients.py::test_forwards_to_the_space",
    "test_sessions.py::test_it_is_told_who_is_there",
    "test_listener.py::test_a_key_opens_what_it_is_for",
    "test_listener.py::test_a_key_that_is_removed_takes_its_connections_along",
    "test_listener.py::test_a_killed_listener_is_started_again",
    "test_listener.py::test_an_sshd_that_hangs_goes_with_its_client",
    "test_editors.py::test_the_server_of_an_editor[listener]",
    "test_hostile.py::test_it_fills_no_disk",
    "test_hostile.py::test_it_gets_no_agent_of_keys",
)
WHOLE = (
    *("test_clients.py", "test_sessions.py", "test_hostile.py", "test_listener.py"),
    "test_editors.py",
)
MOUNTED = 'mount --bind "$1" /etc/passwd && shift && exec "$@"'


@as_root
@pytest.mark.timeout(TIMEOUT_S + 20)
def test_without_root(ordinary_user: Account, data: Path, tmp_path: Path) -> None:
    names = tmp_path / "passwd"
    own = f"somebody:x:{ordinary_user.uid}:{ordinary_user.gid}::{data}:/bin/sh\n"
    names.write_text(Path("/etc/passwd").read_text() + own)
    os.chown(data, *ordinary_user)
    interpreter = interpreter_for(ordinary_user)
    folder = Path(__file__).parent
    tests = WHOLE if EXHAUSTIVE else SAMPLE
    done = subprocess.run(
        [
            *("unshare", "--mount", "--propagation", "private", "sh", "-c", MOUNTED, "sh"),
            str(names),
            *("setpriv", f"--reuid={ordinary_user.uid}", f"--regid={ordinary_user.gid}"),
            *("--clear-groups", "--bounding-set=-all", interpreter.executable),
            *(*PYTEST[1:], f"--basetemp={data / 'pytest'}", *(str(folder / one) for one in tests)),
        ],
        env={
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(data),
            "TMPDIR": str(data),
            "PYTHONPATH": interpreter.pythonpath,
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        cwd=SOURCE,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
