"""Agents, as the contract has them: turns, trust, keys, context, and what waits for a person."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import Sequence
from typing import Literal

from carrel.api.types import agents as types
from carrel.api.types.common import moment, moment_or_none, shared
from carrel.domain.access import Caller
from carrel.domain.agents import Brought, FoundFrontend
from carrel.domain.errors import PathInvalid, SpaceNotFound
from carrel.domain.hub import Item
from carrel.domain.imports import Imported
from carrel.domain.invocations import AgentLibrary, Description, Resolution, by_provider
from carrel.domain.turns import (
    AgentSetup,
    Attachment,
    Continuation,
    Control,
    ControlKind,
    InteractionMode,
    Turn,
    TurnRequest,
)
from carrel.service.access import require_admin
from carrel.service.credentials import Keyring
from carrel.service.files import SpaceContext
from carrel.service.inbox import Inbox, WaitingItems
from carrel.service.spaces import Spaces
from carrel.service.trust import Trust
from carrel.service.turns import Turns


class TurnOperations:
    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    async def start(self, caller: Caller, space: str, new: types.NewTurn) -> types.TurnInfo:
        """The agent works when this is answered; its events are on the hub and at `/v1/events`."""
        return self.info(await self._turns.start(caller, space, turn_request(new)))

    async def list(self, caller: Caller, space: str, asked: types.TurnListQuery) -> types.TurnList:
        found = await self._turns.list(caller, space, asked.limit)
        return types.TurnList(turns=tuple(self.info(one) for one in found))

    async def show(self, caller: Caller, turn: str, asked: types.TurnQuery) -> types.TurnInfo:
        return self.info(await self._turns.wait(caller, turn, asked.wait_s))

    async def interrupt(self, caller: Caller, turn: str) -> types.TurnInfo:
        """As Ctrl-C; its end comes as it would otherwise."""
        await self._turns.interrupt(caller, turn)
        return self.info(await self._turns.get(caller, turn))

    async def stop(self, caller: Caller, turn: str) -> types.TurnInfo:
        """The agent is asked to end; one that does not is killed."""
        await self._turns.stop(caller, turn)
        return self.info(await self._turns.get(caller, turn))

    async def terminal(
        self, caller: Caller, space: str, asked: types.TerminalQuery
    ) -> types.TerminalInfo:
        """The command that attaches to the terminal of the agent: for a terminal of its own, with
        `hangup`, as at `/v1/spaces/{space}/exec`."""
        found = await self._turns.attaching(
            caller, space, read_only=asked.read_only, prefix=asked.prefix
        )
        return types.TerminalInfo(
            turn=self.info(found.turn), argv=tuple(found.how.argv), cwd=found.how.cwd
        )

    async def input(self, caller: Caller, turn: str, asked: types.InputBody) -> types.TurnInfo:
        return await self._say(caller, turn, Control(ControlKind.INPUT, text=asked.text))

    async def decide(
        self, caller: Caller, turn: str, permission: str, said: types.DecisionBody
    ) -> types.TurnInfo:
        """Answers one of the turn's `permissions`, which came as a `permission` event."""
        control = Control(ControlKind.PERMISSION, id=permission, allow=said.allow)
        return await self._say(caller, turn, control)

    async def _say(self, caller: Caller, turn: str, control: Control) -> types.TurnInfo:
        await self._turns.control(caller, turn, control)
        return self.info(await self._turns.get(caller, turn))

    def info(self, turn: Turn) -> types.TurnInfo:
        """With what it waits for now."""
        return types.TurnInfo(
            id=turn.run_id,
            space=turn.space_id,
            session=turn.session_id,
            frontend=turn.frontend,
            provider=turn.provider,
            model=turn.model,
            permission=turn.permission,
            permissions=tuple(self._turns.asking(turn.run_id)),
            prompt=turn.prompt,
            terminal=turn.mode is InteractionMode.INTERACTIVE,
            state=turn.state,
            created_at=moment(turn.created_at),
            ended_at=moment_or_none(turn.ended_at),
            continuation=self._turns.continuation_of(turn),
            result=turn.result,
            usage=turn.usage,
            notes=turn.notes,
            after=turn.after,
        )


def turn_request(new: types.NewTurn) -> TurnRequest:
    return TurnRequest(
        frontend=new.frontend or "",
        prompt=new.prompt,
        session_id=new.session,
        model=new.model,
        continuation=_continuation(new.continuation),
        permission=new.permission,
        env=new.env,
        attachments=tuple(
            Attachment(one.path, one.media_type, one.folder == "context") for one in new.attachments
        ),
        system_prompt=new.system_prompt,
        timeout_s=new.timeout_s,
        answer_s=new.answer_s,
        mode=InteractionMode.INTERACTIVE if new.terminal else InteractionMode.HEADLESS,
        trust=new.trust,
        queue=new.queue,
    )


def _continuation(said: types.ContinuationBody | None) -> Continuation | None:
    return None if said is None else Continuation(said.provider, said.key)


class TrustOperations:
    """What a project brings for its agent, and what a person says to it."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust

    async def show(self, caller: Caller, space: str, asked: types.TrustQuery) -> types.TrustInfo:
        return _trust(await self._trust.brought(caller, space, asked.frontend or ""))

    async def say(self, caller: Caller, space: str, said: types.TrustBody) -> types.TrustInfo:
        """For administrators. It holds for this content, in whatever space, until it changes."""
        found = await self._trust.say(
            caller, space, digest=said.digest, agreed=said.trust, frontend=said.frontend or ""
        )
        return _trust(found)


def _trust(found: Brought) -> types.TrustInfo:
    return types.TrustInfo(**dataclasses.asdict(found), trusted=found.trusted)


class ContextOperations:
    """What the agent of a space is given to read, beside its tree."""

    def __init__(self, context: SpaceContext) -> None:
        self._context = context

    async def list(self, caller: Caller, space: str) -> types.ContextList:
        return types.ContextList(files=tuple(await self._context.list(caller, space)))

    async def remove(self, caller: Caller, space: str, name: str) -> types.ContextList:
        await self._context.remove(caller, space, name)
        return await self.list(caller, space)


class AgentOperations:
    """The frontends of this machine."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    async def list(self, caller: Caller) -> types.FrontendList:
        """What is installed, and how to install what is not."""
        return _frontends(await self._keyring.found(caller))

    async def look(self, caller: Caller, at: types.PathBody) -> types.FrontendList:
        """Looks for those that are missing on a person's own PATH too, now and later."""
        return _frontends(await self._keyring.look(caller, at.path))

    async def install(self, caller: Caller, name: str) -> FoundFrontend:
        """A pinned version, into Carrel's own folder; at once when it is there already."""
        return await self._keyring.install(caller, name)

    async def take(self, caller: Caller, name: str, found: types.ImportBody) -> FoundFrontend:
        """Given to that agent in the owner's spaces; replaces what was imported before."""
        if found.login_only:
            return await self._keyring.renew(caller, name, found.login)
        imported = Imported(found.files, found.servers, found.settings, found.keys, found.login)
        return await self._keyring.take(caller, name, imported, found.endpoints)

    async def forget(self, caller: Caller, name: str) -> FoundFrontend:
        return await self._keyring.forget(caller, name)


def _frontends(found: Sequence[FoundFrontend]) -> types.FrontendList:
    providers = (
        types.ProviderInfo(
            id=one.id, models=one.models, frontends=tuple(each.name for each in one.frontends)
        )
        for one in by_provider(found)
    )
    return types.FrontendList(frontends=tuple(found), providers=tuple(providers))


class InvocationOperations:
    """Programs of agents that others start. What is written and named is the machine's own, so
    this is for administrators; no stored key is given to it."""

    def __init__(self, library: AgentLibrary) -> None:
        self._library = library

    async def build(self, caller: Caller, new: types.NewInvocation) -> types.InvocationInfo:
        """Prepares it in `state`, and says how it is started; the caller adds the keys."""
        require_admin(caller)
        for path in (new.cwd, new.state):
            if not os.path.isabs(path) or "\0" in path:
                raise PathInvalid(f"{path[:80]!r} is no absolute path.", hint="Name it from / on.")
        given = shared(new, TurnRequest) | {
            "session_id": new.session,
            "continuation": _continuation(new.continuation),
            "attachments": tuple(map(Attachment, new.attachments)),
        }
        found = await asyncio.to_thread(
            self._library.build_invocation,
            *(TurnRequest(**given), AgentSetup(new.cwd, new.state)),
            *(new.interaction_mode, new.io_mode),
        )
        stdin = None if found.stdin is None else found.stdin.decode("utf-8", "replace")
        return types.InvocationInfo(
            spec=found.spec,
            warnings=found.warnings,
            stdin=stdin,
            keeps_stdin=found.keeps_stdin,
            credentials=found.credentials,
        )


class KitOperations:
    def __init__(self, library: AgentLibrary) -> None:
        self._library = library

    async def resolve(self, caller: Caller, asked: types.KitsBody) -> Resolution:
        """Whether they can be had."""
        require_admin(caller)
        return self._library.resolve(asked.kits)

    async def describe(self, caller: Caller, asked: types.KitsBody) -> Description:
        """What they bring along."""
        require_admin(caller)
        return self._library.describe(asked.kits, asked.frontend or "")


class CredentialOperations:
    """The keys that agents are given."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    async def list(self, caller: Caller) -> types.CredentialList:
        found = await self._keyring.endpoints(caller)
        return types.CredentialList(
            credentials=tuple(found), endpoints={name: tuple(one) for name, one in found.items()}
        )

    async def set(
        self, caller: Caller, name: str, new: types.CredentialBody
    ) -> types.CredentialList:
        await self._keyring.set(caller, name, new.value, new.endpoints)
        return await self.list(caller)

    async def remove(self, caller: Caller, name: str) -> types.CredentialList:
        await self._keyring.remove(caller, name)
        return await self.list(caller)


class InboxOperations:
    def __init__(self, inbox: Inbox, waiting: WaitingItems, spaces: Spaces) -> None:
        self._inbox = inbox
        self._waiting = waiting
        self._spaces = spaces

    async def list(self, caller: Caller) -> types.InboxList:
        """Questions that nobody answered, permissions that agents wait for, and words to the user
        that nobody has seen."""
        found = []
        for one in await self._waiting.items(caller):
            with contextlib.suppress(SpaceNotFound):
                space = await self._spaces.get(caller, one.space_id)
                found.append(_item(one, space.name))
        return types.InboxList(items=tuple(found))

    async def see(self, caller: Caller) -> types.Seen:
        """The words to the user have been read; questions stay."""
        return types.Seen(seen=await self._inbox.dismiss(caller))

    async def answer(self, caller: Caller, item: str, said: types.AnswerBody) -> types.Answered:
        space_id = ""
        if said.space is not None:
            space_id = (await self._spaces.existing(caller, said.space)).space_id
        return types.Answered(seq=await self._waiting.answer(caller, item, said.answer, space_id))


def _item(item: Item, name: str) -> types.InboxItem:
    kind: Literal["question", "signal"] = "question" if item.question else "signal"
    return types.InboxItem(
        id=item.item_id,
        space=item.space_id,
        name=name,
        seq=item.seq,
        at=moment(item.at),
        kind="permission" if item.permission else kind,
        text=item.text,
        choices=item.choices,
        priority=item.priority,
        own=item.own,
        review=item.review,
    )
