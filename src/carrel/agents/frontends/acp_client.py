"""Our side of the protocol: what an agent tells, and what it asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from carrel.agents.frontends import lines
from carrel.agents.frontends.acp_stream import AcpTranslator
from carrel.agents.permitting import OWN_TOOLS, Permissions
from carrel.domain.agents import Stage, TurnResult

if TYPE_CHECKING:
    from acp.connection import StreamEvent
    from acp.schema import PermissionOption, RequestPermissionResponse, ToolCallUpdate

UPDATE = "session/update"


class Client:
    """The protocol's client of one turn. Updates are taken as they come over the wire: the
    library drops those that it does not know."""

    def __init__(self, stage: Stage, permissions: Permissions) -> None:
        self.stage = stage
        self.permissions = permissions
        self.session = ""
        self.listens = False
        """False while an earlier conversation is told again."""
        self._translator = AcpTranslator()

    def observe(self, event: StreamEvent) -> None:
        message = event.message
        if not self.listens or message.get("method") != UPDATE:
            return
        params = lines.mapping(message, "params")
        if params.get("sessionId") != self.session:
            self.stage.tell(lines.raw(lines.encode(params).encode()))
            return
        for told in self._translator.update(lines.mapping(params, "update")):
            self.stage.tell(told)

    def ended(self, reason: str, usage: Mapping[str, Any]) -> TurnResult:
        told, result = self._translator.ended(reason, usage)
        for one in told:
            self.stage.tell(one)
        return result

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        """See `observe`."""

    async def request_permission(
        self,
        session_id: str,
        tool_call: ToolCallUpdate,
        options: list[PermissionOption],
        **kwargs: Any,
    ) -> RequestPermissionResponse:
        name = tool_call.title or tool_call.kind or ""
        own = name.startswith(OWN_TOOLS)
        allow = own or await self.permissions.allowed(
            tool_call.tool_call_id, name, tool_call.raw_input
        )
        return _answer(options, allow)

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        from acp import RequestError

        raise RequestError.method_not_found(method)

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        """Extensions of an agent mean nothing here."""


@dataclass(frozen=True)
class Choices:
    """What a session lets be chosen."""

    modes: Sequence[str]
    model: str
    """The option that the model is; empty when there is none."""

    @classmethod
    def of(cls, session: Any) -> Choices:
        modes = getattr(session, "modes", None)
        options = getattr(session, "config_options", None) or []
        named = (str(one.id) for one in options if getattr(one, "category", None) == "model")
        return cls([mode.id for mode in modes.available_modes] if modes else [], next(named, ""))


def _answer(options: list[PermissionOption], allow: bool) -> RequestPermissionResponse:
    """Once rather than always: the next question is asked again."""
    from acp.schema import AllowedOutcome, DeniedOutcome, RequestPermissionResponse

    kinds = ("allow_once", "allow_always") if allow else ("reject_once", "reject_always")
    for kind in kinds:
        for option in options:
            if option.kind == kind:
                chosen = AllowedOutcome(outcome="selected", option_id=option.option_id)
                return RequestPermissionResponse(outcome=chosen)
    return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
