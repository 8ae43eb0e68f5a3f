"""The next request in a folder that another one is just leaving."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from carrel.domain.errors import ProjectInUse
from carrel.service.requests import work


@pytest.mark.parametrize("stays", [False, True])
async def test_a_folder_that_was_left_meanwhile_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch, stays: bool
) -> None:
    """The space was there at the first look, and is gone before its request is looked for."""
    looks: list[Any] = []

    def space_request(_parts: object, request: object) -> object:
        looks.append(request)
        if stays or len(looks) == 1:
            raise ProjectInUse("Another space works in /x.", folder="/x")
        return request

    monkeypatch.setattr(work, "space_request", space_request)
    spaces = [SimpleNamespace(space_id="sp_x", place="/x")] if stays else []
    parts: Any = SimpleNamespace(journal=SimpleNamespace(all=lambda: spaces))
    book: Any = SimpleNamespace(all=lambda: [])
    request: Any = SimpleNamespace(asked=SimpleNamespace(workspace_path="/x"))
    if stays:
        with pytest.raises(ProjectInUse):
            await work.wanted_space(parts, book, request)
        assert len(looks) == 1
    else:
        assert await work.wanted_space(parts, book, request) is request and len(looks) == 2
