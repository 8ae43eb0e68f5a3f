"""An ordinary user to whom the machine gives a range of ids, for tests that root runs again as one.

The machine's own files in /etc stay as they are: whoever is run sees others in their place.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from carrel.linux import mounts, namespaces
from carrel.linux.ids import RANGE
from carrel.linux.subids import GROUPS, USERS, granted
from tests.accounts import Account

FIRST_USER, FIRST_GROUP = 1_700_000_000, 1_750_000_000
"""Nobody's. Groups begin elsewhere than users, as they may."""
NAME = "ranged"
GIVES = os.geteuid() == 0 or granted() is not None
"""Whether systems of images have a range of ids in these tests."""
_ETC = (Path("/etc/passwd"), Path("/etc/group"), Path(USERS), Path(GROUPS))


def make_etc(folder: Path, account: Account, *, count: int = RANGE) -> Path:
    """The files as they are for a user of that name, below a folder that all may read."""
    if shutil.which("newuidmap") is None:
        pytest.skip("newuidmap is not installed: sudo apt-get install uidmap")
    lines = {
        "passwd": f"{NAME}:x:{account.uid}:{account.gid}::/nonexistent:/bin/sh\n",
        "group": f"{NAME}:x:{account.gid}:\n",
        "subuid": f"{NAME}:{FIRST_USER}:{count}\n",
        "subgid": f"{NAME}:{FIRST_GROUP}:{count}\n",
    }
    folder.mkdir(mode=0o755)
    for path in _ETC:
        before = path.read_text() if path.exists() and path.name in ("passwd", "group") else ""
        (folder / path.name).write_text(before + lines[path.name])
        (folder / path.name).chmod(0o644)
    return folder


def give(path: Path, number: int) -> None:
    """To that user and group of an image."""
    if os.geteuid() == 0:
        os.chown(path, number, number)
        return
    ids = granted()
    assert ids is not None
    code = "import os, sys; from carrel.linux import subids; first = subids.enter().uid\n"
    code += "os.chown(sys.argv[1], *[first + int(sys.argv[2])] * 2)"
    subprocess.run([sys.executable, "-P", "-c", code, str(path), str(number)], check=True)


def show_etc(folder: Path) -> None:
    """For this process and its children, which are not others' any more."""
    namespaces.unshare(namespaces.CLONE_NEWNS)
    namespaces.set_propagation(namespaces.MS_SLAVE)
    for path in _ETC:
        clone = mounts.clone_mount(str(folder / path.name))
        try:
            mounts.attach(clone, str(path))
        finally:
            os.close(clone)
