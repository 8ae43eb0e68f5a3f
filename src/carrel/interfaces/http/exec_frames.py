"""Control frames from clients of a command."""

from __future__ import annotations

import json
import signal
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from carrel.domain.errors import MessageInvalid
from carrel.interfaces.http.models.common import Body
from carrel.interfaces.http.models.runs import Side, SignalName
from carrel.interfaces.http.validation import invalid


class EndFrame(Body):
    type: Literal["eof"]


class ResizeFrame(Body):
    type: Literal["resize"]
    rows: Side
    cols: Side


class SignalFrame(Body):
    type: Literal["signal"]
    signal: SignalName

    @property
    def number(self) -> int:
        return signal.Signals[f"SIG{self.signal}"]


Control = EndFrame | ResizeFrame | SignalFrame
_control: TypeAdapter[Control] = TypeAdapter(Annotated[Control, Field(discriminator="type")])


def parse_control(text: str) -> Control:
    """Raises `MessageInvalid`."""
    try:
        return _control.validate_python(json.loads(text))
    except ValidationError as error:
        raise invalid(error.errors(), "frame") from None
    except (ValueError, RecursionError):
        raise MessageInvalid(
            "A text frame is no JSON.", hint="Send input in binary frames."
        ) from None
