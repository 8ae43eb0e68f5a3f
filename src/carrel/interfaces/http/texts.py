"""Text that names files and arguments, where not everything is UTF-8.

A byte that is no UTF-8 is the lone surrogate U+DC80 to U+DCFF, as `os.fsdecode` has it. In
JSON that is the escape `\\udc80` to `\\udcff`, both ways; in a query it is the byte itself,
percent-encoded. So every name goes out and comes back as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import unquote_to_bytes

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from carrel.domain.errors import MessageInvalid

MAX_PATH = 4096
"""Longer ones no system call takes."""
MAX_WORD = 131_072
"""The kernel takes no longer argument or variable."""


@dataclass(frozen=True)
class OsText:
    """A field's type: like a string, but bytes that are no text come through. pydantic's own
    string would refuse them as soon as its length is checked."""

    max_length: int
    min_length: int = 0

    def __get_pydantic_core_schema__(
        self, _source: Any, _handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self._checked, metadata={"carrel": self}
        )

    def __get_pydantic_json_schema__(
        self, _schema: CoreSchema, _handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema: JsonSchemaValue = {"type": "string", "maxLength": self.max_length}
        if self.min_length:
            schema["minLength"] = self.min_length
        return schema

    def _checked(self, value: object) -> str:
        if not isinstance(value, str):
            raise PydanticCustomError("string_type", "Input should be a valid string")
        if not self.min_length <= len(value) <= self.max_length:
            raise PydanticCustomError(
                "string_length",
                "Input should have {least} to {most} characters",
                {"least": self.min_length, "most": self.max_length},
            )
        try:
            value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise PydanticCustomError(
                "string_unicode", "Input has a surrogate that stands for no byte"
            ) from None
        return value


PathText = Annotated[str, OsText(MAX_PATH, 1)]
WordText = Annotated[str, OsText(MAX_WORD)]


def query_values(query: bytes, name: str) -> list[str]:
    """All values of one parameter. The usual parsing would replace what is no UTF-8."""
    wanted = name.encode()
    found = []
    for part in query.split(b"&"):
        key, _, value = part.partition(b"=")
        if key == wanted or unquote_to_bytes(key) == wanted:
            plain = unquote_to_bytes(value.replace(b"+", b" "))
            found.append(plain.decode("utf-8", "surrogateescape"))
    return found


def path_of(scope: Mapping[str, Any], default: str | None = None) -> str:
    """The one `path` of a request's query. `MessageInvalid`."""
    found = query_values(scope["query_string"], "path")
    if not found and default is not None:
        return default
    if len(found) != 1 or not 1 <= len(found[0]) <= MAX_PATH:
        raise MessageInvalid(
            "The query has to have one `path`.", hint="Such as ?path=src/main.py", field="path"
        )
    return found[0]
