"""Who is who in an image, which may say anything of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from carrel.domain.systems import ImageAccount
from carrel.trees.shared_layers import SharedLayers
from carrel.trees.systems import Systems


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("root:x:0:0:r:/home/r:/bin/sh", ImageAccount(0, 0, "root", "/home/r", "/bin/sh")),
        ("root:x:0:0:r:/a\0b:/bin/\x1b[31msh", ImageAccount(0, 0, "root", "/", "/bin/sh")),
        (f"root:x:0:0:r:/{'a' * 9999}:sh", ImageAccount(0, 0, "root", "/", "/bin/sh")),
        ("ro\0ot:x:0:0:r:/:/bin/sh", ImageAccount(0, 0, "0", "/", "/bin/sh")),
    ],
)
def test_what_every_command_gets_of_it_is_plain(
    tmp_path: Path, line: str, found: ImageAccount
) -> None:
    helper: Any = None  # Nothing is mounted.
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text(f"{line}\n")
    wanted = "root" if line.startswith("root") else "0"
    assert Systems(helper, SharedLayers(tmp_path / "layers")).account(tmp_path, wanted) == found
