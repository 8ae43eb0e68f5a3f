"""The quick parser: plain command lines, without click.

It knows only what is beyond doubt. Whatever is not (help, a mistake, an abbreviation) it
leaves to click, which explains it.
"""

from __future__ import annotations

from carrel.cli.spec import NO_START, Option
from carrel.cli.values import convert

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrel.cli.spec import Argument, Verb

    Values = dict[str, object]

PROGRAM_OPTIONS = (
    Option("--data FOLDER", "The data folder."),
    Option("--url URL", "The address of a daemon on TCP."),
    NO_START,
)


def parse_program(words: list[str]) -> tuple[Values, list[str]] | None:
    """Gives the options before the verb, and the rest."""
    values: Values = {}
    index = 0
    while index < len(words) and words[index].startswith("-"):
        step = _option(PROGRAM_OPTIONS, words, index, values)
        if not step:
            return None
        index += step
    return values, words[index:]


def parse_verb(verb: Verb, words: list[str]) -> Values | None:
    """Gives all options and arguments, converted; None when click has to look."""
    values: Values = {}
    plain: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        if word == "--":
            plain += words[index + 1 :]
            break
        if word == "-" or not word.startswith("-"):
            plain.append(word)
            index += 1
            continue
        step = _option(verb.options, words, index, values)
        if not step:
            return None
        index += step
    return values if _arguments(verb.arguments, plain, values) else None


def _option(options: Sequence[Option], words: list[str], index: int, values: Values) -> int:
    """Gives how many words it took; 0 when it is not plain."""
    word = words[index]
    name, equals, given = word.partition("=") if word.startswith("--") else (word, "", "")
    option = next((one for one in options if name in one.flags), None)
    if option is None:
        return _cluster(options, word, values)
    if option.kind == "flag":
        values[option.name] = True
        return 0 if equals else 1
    if not equals:
        if index + 1 >= len(words):
            return 0
        given = words[index + 1]
    try:
        value = convert(option, given)
    except ValueError:
        return 0
    if option.repeats:
        before = values.get(option.name)
        values[option.name] = [*(before if isinstance(before, list) else ()), value]
    else:
        values[option.name] = value
    return 1 if equals else 2


def _cluster(options: Sequence[Option], word: str, values: Values) -> int:
    """Takes several short flags in one word, such as -it."""
    if word.startswith("--") or len(word) < 3:
        return 0
    for letter in word[1:]:
        option = next((one for one in options if f"-{letter}" in one.flags), None)
        if option is None or option.kind != "flag":
            return 0
        values[option.name] = True
    return 1


def _arguments(arguments: Sequence[Argument], plain: list[str], values: Values) -> bool:
    rest = list(plain)
    for argument in arguments:
        if argument.many:
            values[argument.name], rest = rest, []
        elif rest:
            values[argument.name] = rest.pop(0)
        if argument.required and not values.get(argument.name):
            return False
    return not rest
