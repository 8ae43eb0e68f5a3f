"""Conflicts of a landing, given to the agent of the space: its files get both versions with git's
marks between them, and its next turn says what to do.

Which version of the project a file was given is written down with the space. The next landing
counts from there: what the agent makes of both is no conflict any more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from carrel.domain.access import Caller
from carrel.domain.errors import CarrelError, LandingConflicts, PathError
from carrel.domain.files import Files
from carrel.domain.spaces import Space
from carrel.domain.store import Store
from carrel.domain.turns import TurnRequest
from carrel.service.files import SpaceFiles
from carrel.service.spaces import Spaces
from carrel.service.turns import Turns

_LOST = "\N{REPLACEMENT CHARACTER}"
_MARK = "<<<<<<< "
_TURNS = 50
"""The newest, among which the conversation is looked for."""


@dataclass(frozen=True)
class ConflictTurns:
    store: Store
    spaces: Spaces
    files: SpaceFiles
    turns: Turns

    async def begin(self, caller: Caller, space: Space, error: LandingConflicts) -> str:
        """The turn. Raises `LandingConflicts` when an agent cannot do it, and what beginning a turn
        raises; the space is then as it was."""
        told = [(str(one["path"]), str(one["text"])) for one in _listed(error)]
        texts = {path: text for path, text in told if text and _LOST not in text}
        if len(texts) < int(str(error.details["total"])):
            raise LandingConflicts(
                error.message,
                hint="Not all of these are text that can be given to the agent, or there are too"
                " many: merge them by hand.",
                **error.details,
            )
        marked = {path: text for path, text in texts.items() if _MARK in text}
        commit = str(error.details["commit"])
        before = await self._write(caller, space, marked)
        try:
            merged = {**space.merged, **dict.fromkeys(texts, commit)}
            await self.spaces.note_merged(space.space_id, merged)
            request = await self._request(space, _prompt(texts, marked))
            return (await self.turns.start(caller, space.space_id, request)).run_id
        except BaseException:
            await self.spaces.note_merged(space.space_id, space.merged)
            await self._write(caller, space, before)
            raise

    async def _write(
        self, caller: Caller, space: Space, texts: Mapping[str, str | bytes]
    ) -> dict[str, str | bytes]:
        """What was there before."""
        found: dict[str, str | bytes] = {}

        def write(files: Files) -> None:
            for path, text in texts.items():
                with contextlib.suppress(PathError), files.open_read(path) as file:
                    found[path] = file.read()
                files.write(path, text.encode() if isinstance(text, str) else text)

        await self.files.use(caller, space.space_id, write, writes=True)
        return found

    async def _request(self, space: Space, prompt: str) -> TurnRequest:
        """It goes on with the newest conversation, as that was."""
        turns = await self.store.turns(space.space_id, limit=_TURNS)
        request = TurnRequest(space.agent, prompt)
        if not turns:
            return request
        newest = turns[0]
        known = (one.continuation for one in turns if one.continuation is not None)
        found = next(known, None)
        return replace(
            request,
            frontend=newest.frontend,
            model=newest.model,
            permission=newest.permission,
            system_prompt=newest.system_prompt,
            continuation=found if found and found.provider == newest.provider else None,
        )


def _listed(error: CarrelError) -> list[dict[str, object]]:
    found = error.details["conflicts"]
    assert isinstance(found, list)
    return found


def _prompt(texts: Mapping[str, str], marked: Mapping[str, str]) -> str:
    lines = [
        "Your work cannot be brought into the project yet: the project has changed in the same"
        " places since you began."
    ]
    if marked:
        lines += [
            "",
            "These files now have both versions, with git's conflict marks around them: between"
            " <<<<<<< and ======= is the project's, between ======= and >>>>>>> is yours. Merge"
            " them so that both intentions hold, and leave no marks:",
            *(f"- {path}" for path in marked),
        ]
    if others := [path for path in texts if path not in marked]:
        lines += [
            "",
            "One side removed or replaced these, and the other one changed them. Keep, change or"
            " remove each as is right now; what you leave is what the project gets:",
            *(f"- {path}" for path in others),
        ]
    return "\n".join([*lines, "", "Check the result as you checked your work, and stop then."])
