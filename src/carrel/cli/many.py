"""One thing done to several spaces: each is done, and each that fails is told."""

from __future__ import annotations

from carrel.cli.call import Call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def each(
    call: Call, words: Sequence[str], work: Callable[[str], object], *, quiet: bool = False
) -> int:
    """The exit code is the first failure's. With one space a failure is just raised."""
    if len(words) == 1:
        results, code = [work(words[0])], 0
    else:
        results, code = _several(call, words, work)
    if call.json:
        call.show(results[0] if len(words) == 1 else results)
    elif not quiet:
        for result in results:
            if isinstance(result, dict):
                call.say(str(result["name"]))
    return code


def _several(
    call: Call, words: Sequence[str], work: Callable[[str], object]
) -> tuple[list[object], int]:
    from carrel.cli.failing import report
    from carrel.domain.errors import CarrelError

    results: list[object] = []
    first = 0
    for word in words:
        try:
            results.append(work(word))
        except CarrelError as error:
            code = report(error, call.json)
            first = first or code
    return results, first
