"""What trees ask of the launcher: mounts that only it can make or hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class OverlayMount:
    """One overlay, the uppermost lower layer first."""

    lowers: tuple[Path, ...]
    upper: Path
    work: Path
    target: Path
    beside: str = ""
    """The key of a namespace that is held: it is mounted in there, and not in one of its own."""
    ranged: bool = False
    """There have to be the user's further ids in there. The upper folder gets the owner of the
    lowest one."""


class MountHelper(Protocol):
    """Blocking, thread-safe. Raises `LauncherUnavailable`, or `TreeUnavailable` when the
    kernel refuses."""

    def mount_overlay(self, key: str, mount: OverlayMount) -> None:
        """Mounts it in a user and mount namespace of its own, which the launcher holds
        under `key` until it is released; for ordinary users. Idempotent."""
        ...

    def open_in(self, key: str, path: Path) -> int:
        """An O_PATH descriptor of `path` as the namespace of `key` sees it."""
        ...

    def held(self) -> frozenset[str]:
        """The keys of all namespaces that are held now."""
        ...

    def release(self, key: str) -> None:
        """Lets go of a namespace, and with it of its mount; idempotent."""
        ...


class LauncherPort(Protocol):
    """What runtimes ask of the launcher; the requests are described in `carrel.launcher`."""

    async def ask(
        self,
        op: str,
        fields: Mapping[str, object],
        descriptors: list[int],
        timeout_s: float = ...,
    ) -> tuple[dict[str, Any], list[int]]:
        """One request and its answer. The caller owns the descriptors of both. An answer with
        `problem` says that, and at which step, it failed. Raises `LauncherUnavailable`."""
        ...
