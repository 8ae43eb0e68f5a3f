"""The bases of one data folder: building, finding, listing and removing them."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import time
from base64 import b32encode
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from carrel.domain.errors import BaseNotFound, CarrelError, TreeDamaged, TreeUnavailable
from carrel.domain.projects import (
    BaseRequest,
    OnProgress,
    Progress,
    ProjectKind,
    ignore_progress,
)
from carrel.domain.trees import Base, Change, Owner
from carrel.linux.ids import store_gid, store_uid
from carrel.trees.bases.building import FolderBuild, Previous
from carrel.trees.bases.exclusion import Exclusion
from carrel.trees.bases.freezing import Freeze
from carrel.trees.bases.heads import Head, read_head
from carrel.trees.bases.layouts import LayeredLayout, Layout
from carrel.trees.bases.locks import Held, hold, try_hold
from carrel.trees.bases.manifest import read_manifest
from carrel.trees.bases.metering import Meter
from carrel.trees.bases.producing import ProducedBuild, Producer
from carrel.trees.bases.publishing import HEADS, STAGING, Shop, StackGone, Staging
from carrel.trees.bases.records import LAYER, Record, read_record
from carrel.trees.bases.room import no_room_as_error
from carrel.trees.bases.scan import Sieve

SANDBOX_OWNER = Owner(1000, 1000)
"""Whom every file of a tree belongs to, as a sandbox sees it."""
VERIFY_AFTER_S = 0.5
"""What was read in less time is as good as one moment; else the project is looked at
again, and what changed meanwhile is read again."""
STALE_STAGING_S = 7 * 24 * 3600.0
"""Nobody carries on a build that was interrupted so long ago."""
_STACK_ATTEMPTS = 3
"""How often a base below may be removed under a build before it gives up."""
_ID = re.compile(r"ba_[a-z2-7]{26}")


class BaseStore:
    """Any number of threads and processes may use the same data folder at once.

    `open_source` and `open_producer` come from the sources; see `carrel.trees.sources`.
    """

    def __init__(
        self,
        data: Path,
        *,
        layout: Layout | None = None,
        shown: Owner = SANDBOX_OWNER,
        verify_after_s: float = VERIFY_AFTER_S,
    ) -> None:
        self._data = data
        owner = Owner(store_uid(), store_gid())
        bases = data / "bases"
        bases.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in (STAGING, HEADS):
            (bases / name).mkdir(mode=0o700, exist_ok=True)
        self._shop = Shop(bases, layout or LayeredLayout(owner), owner, shown, verify_after_s)
        self._remove_stale()
