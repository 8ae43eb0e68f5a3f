"""What the agent of a request is told, and what of its answer is meant for its client."""

from __future__ import annotations

from carrel.domain.requests import Generate

MISSING = "NEEDS RESEARCH:"
"""The line of an answer after which stands what the agent would have to know."""
MOST_MISSING, MISSING_CHARACTERS = 50, 1000
RULES = f"""\
You work alone in the current folder, which was made for this task: write the files there, \
directly, in no folder of your own around them. Nothing outside of it can be written. Do not \
describe files that you have not written: what counts is what is on the disk when you are done.
If you must know something that is neither in the folder nor in what you were given, and that \
you cannot find out, make what can be made without it, and end your last message with the line \
`{MISSING}` and below it one line for each thing that is missing."""


def prompt_of(asked: Generate) -> str:
    parts = [asked.instructions]
    if asked.architecture:
        parts.append(f"The architecture that is wanted:\n{asked.architecture}")
    if asked.context:
        parts.append(f"What is known:\n{asked.context}")
    return "\n\n".join(parts)


def missing_in(said: str) -> tuple[str, ...]:
    """What the last message of an agent says is missing."""
    before, found, after = said.rpartition(MISSING)
    if not found or (before and not before.endswith("\n")):
        return ()
    lines = (line.strip().lstrip("-*• ").strip() for line in after.splitlines())
    return tuple(line[:MISSING_CHARACTERS] for line in lines if line)[:MOST_MISSING]
