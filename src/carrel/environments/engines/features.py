"""Features of development containers, which the reference tool adds to an image.

The tool runs beside podman in the engine's sandbox, as an engine does, with a file that we write:
what the image is and which features it gets. Nothing else of the project's devcontainer.json gets
to it, so that it runs no command of the project outside of the build. What features ask for beyond
their files (privileges, mounts) it only writes into a label, which nobody reads.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from carrel.domain.availability import Availability
from carrel.domain.engines import ImageBuild
from carrel.environments.engines.sandbox import PROJECT, WORK

PACKAGE = "@devcontainers/cli"
Words = Sequence[str]
TOOL, NODE = "/run/tool", "/run/node"
WRAPPER, OVERRIDE = "podman-of-carrel", "devcontainer.json"
_REFERENCE = re.compile(
    r"(?:\./[\w./-]{1,200}"
    r"|[a-z0-9][a-z0-9.-]*(?::\d{1,5})?(?:/[a-z0-9._-]+)+(?::[\w.-]{1,128}|@sha256:[0-9a-f]{64})?)",
    re.ASCII,
)


def is_feature(reference: str) -> bool:
    """One beside the file, or one of a registry; no address of an archive."""
    return _REFERENCE.fullmatch(reference) is not None and ".." not in reference.split("/")


@dataclass(frozen=True)
class FeatureTool:
    """Where the reference tool and a Node for it are."""

    folder: Path
    node: Path

    def files(self, build: ImageBuild, work: Path) -> dict[str, Path]:
        """What it sees: itself, and in place of the project's file the one that we write."""
        own = f"{PROJECT}/{build.configuration}"
        return {TOOL: self.folder, NODE: self.node, own: work / OVERRIDE}

    def command(
        self, build: ImageBuild, names: tuple[str, str], engine: tuple[Words, Words], work: Path
    ) -> list[str]:
        """The words that build an image on another one, whose `names` these are; what they need is
        written into the work folder. `engine` are the words that podman begins with, and the
        options that its builds get."""
        (base, image), (podman, options) = names, engine
        script = work / WRAPPER
        script.write_text(
            '#!/bin/sh\nif [ "$1" = build ]; then shift; '
            f'set -- build {shlex.join(options)} "$@"; fi\nexec {shlex.join(podman)} "$@"\n'
        )
        script.chmod(0o755)
        # All that the tool is told.
        features = {one.reference: dict(one.options) for one in build.features}
        (work / OVERRIDE).write_text(json.dumps({"image": base, "features": features}))
        words = [NODE, f"{TOOL}/devcontainer.js", "build", "--workspace-folder", PROJECT]
        words += ["--config", f"{PROJECT}/{build.configuration}"]
        words += ["--no-lockfile", "--docker-path", f"{WORK}/{WRAPPER}"]
        return [*words, "--buildkit", "never", "--image-name", image]


def find_feature_tool(folder: Path | None = None) -> FeatureTool | None:
    """In this folder of npm's packages, or on PATH."""
    program = shutil.which("devcontainer")
    package = folder / PACKAGE if folder is not None else None
    if package is None and program is not None:
        package = Path(os.path.realpath(program)).parent
    node = shutil.which("node")
    if package is None or node is None or not (package / "devcontainer.js").is_file():
        return None
    return FeatureTool(package.resolve(), Path(node).resolve())


def feature_support(tool: FeatureTool | None) -> Availability:
    if tool is None:
        return Availability(
            False,
            "the reference tool of development containers is not installed, which adds features",
            f"npm install --global {PACKAGE}",
        )
    return Availability(True, f"{tool.folder} adds features.")
