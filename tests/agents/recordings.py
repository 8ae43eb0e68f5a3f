"""Recorded streams of the real programs, and made-up ones that no program would write."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

from carrel.domain.agents import Translator
from carrel.domain.turns import AgentEventType, Told, TurnResult

STREAMS = Path(__file__).with_name("streams")

SESSION = "00000000-0000-4000-8000-000000000001"
"""Stands in the recordings for whatever id there was."""


@dataclass(frozen=True)
class Replayed:
    told: list[Told]
    result: TurnResult

    @property
    def code(self) -> str:
        return self.result.error.code if self.result.error else ""

    @property
    def types(self) -> list[AgentEventType]:
        """In order; deltas and logs, of which there can be any number, left out."""
        left_out = (AgentEventType.MESSAGE_DELTA, AgentEventType.LOG)
        return [told.type for told in self.told if told.type not in left_out]

    def only(self, type: AgentEventType) -> Told:
        (told,) = [told for told in self.told if told.type is type]
        return told


def replay(translator: Translator, frontend: str, case: str) -> Replayed:
    stream = STREAMS / frontend / f"{case}.jsonl"
    aside = json.loads(stream.with_suffix(".json").read_text())
    code = aside["exit"] if aside["exit"] >= 0 else None
    return play(translator, stream.read_bytes().split(b"\n"), code, aside["stderr"])


def play(
    translator: Translator, lines: Sequence[bytes], code: int | None = 0, stderr: str = ""
) -> Replayed:
    told = [told for line in lines for told in translator.line(line)]
    return Replayed(told, translator.ended(code, stderr))


def made_up(frontend: str) -> st.SearchStrategy[bytes]:
    """Lines: any bytes, and objects of the names and words that the recordings have, in places
    where they mean nothing."""
    names, words = _vocabulary(frontend)
    leaves = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=5)
        | st.sampled_from(words)
    )
    keys = st.sampled_from(names) | st.text(max_size=3)
    values = st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=5),
        max_leaves=12,
    )
    objects = st.dictionaries(keys, values, max_size=6)
    typed = st.builds(lambda type, rest: {**rest, "type": type}, st.sampled_from(words), objects)
    return st.binary(max_size=60) | typed.map(lambda value: json.dumps(value).encode())


def _vocabulary(frontend: str) -> tuple[list[str], list[str]]:
    """The names of fields, and what stands in those that tell kinds apart."""
    names: set[str] = set()
    words: set[str] = set()

    def walk(value: object) -> None:
        if isinstance(value, dict):
            names.update(value)
            words.update(str(value[name]) for name in ("type", "subtype", "model") if name in value)
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    for stream in sorted((STREAMS / frontend).glob("*.jsonl")):
        for line in stream.read_bytes().splitlines():
            walk(json.loads(line))
    return sorted(names), sorted(words)
