"""The table as a picture, for the documentation."""

from __future__ import annotations

from carrel.lifecycle.table import MOVES


def mermaid() -> str:
    """As a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> creating"]
    for state, moves in MOVES.items():
        lines += [f"    {state} --> {other}" for other in MOVES if other in moves]
        if not moves:
            lines.append(f"    {state} --> [*]")
    return "\n".join(lines)
