"""A store of images."""

from __future__ import annotations

from pathlib import Path

import pytest

from carrel.trees.images.store import ImageStore


@pytest.fixture
def store(data: Path) -> ImageStore:
    return ImageStore(data / "own")
