"""A root file system with nothing but busybox: no Python, no Node, no libraries."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

APPLETS = (
    *("sh", "ls", "cat", "id", "sleep", "touch", "mkdir", "rm", "mkfifo", "echo", "env", "pwd"),
    *("true", "false", "nc", "ps", "kill", "chmod", "chown", "stat", "wc", "find", "ln", "printf"),
)


def busybox_image(folder: Path, user: str = "") -> Path:
    """Made below `folder`, once; `user` is one more that it knows, with the number 1234."""
    program = shutil.which("busybox")
    if program is None:
        pytest.skip("busybox is not installed: sudo apt-get install busybox-static")
    image = folder / "busybox"
    if image.exists():
        return image
    draft = folder / "busybox.new"
    for name in ("bin", "etc", "root"):
        (draft / name).mkdir(parents=True, mode=0o755)
    shutil.copy(program, draft / "bin/busybox")
    os.chmod(draft / "bin/busybox", 0o755)
    for name in APPLETS:
        (draft / "bin" / name).symlink_to("busybox")
    others = f"{user}:x:1234:1234::/home/{user}:/bin/sh\n" if user else ""
    (draft / "etc/passwd").write_text(f"root:x:0:0:root:/root:/bin/sh\n{others}")
    (draft / "etc/group").write_text("root:x:0:\n" + (f"{user}:x:1234:\n" if user else ""))
    draft.rename(image)
    return image
