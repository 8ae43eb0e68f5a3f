"""Who is next: in turn between callers, in turn between one's owners, in the order of asking
for one owner."""

from __future__ import annotations

from collections import OrderedDict, deque

Owners = OrderedDict[str, deque[str]]


class Line:
    """The first of each table is who has waited longest for a turn."""

    def __init__(self) -> None:
        self._callers: OrderedDict[str, Owners] = OrderedDict()
        self._where: dict[str, tuple[str, str]] = {}
        self._places: dict[str, int] | None = None

    def __len__(self) -> int:
        return len(self._where)

    def add(self, key: str, caller: str, owner: str) -> None:
        owners = self._callers.setdefault(caller, OrderedDict())
        owners.setdefault(owner, deque()).append(key)
        self._where[key] = (caller, owner)
        self._places = None

    def take(self) -> str:
        """The next one, which is in the line no more. `LookupError` when there is none."""
        if not self._callers:
            raise LookupError("Nobody waits.")
        self._places = None
        key = _take(self._callers)
        del self._where[key]
        return key

    def leave(self, key: str) -> None:
        """Idempotent."""
        if key not in self._where:
            return
        caller, owner = self._where.pop(key)
        owners = self._callers[caller]
        owners[owner].remove(key)
        if not owners[owner]:
            del owners[owner]
        if not owners:
            del self._callers[caller]
        self._places = None

    def place(self, key: str) -> int:
        """From 1; 0 for one that does not wait. As it would be if nobody else came."""
        if self._places is None:
            self._places = {one: place for place, one in enumerate(self._order(), start=1)}
        return self._places.get(key, 0)

    def _order(self) -> list[str]:
        copy: OrderedDict[str, Owners] = OrderedDict(
            (caller, OrderedDict((owner, deque(keys)) for owner, keys in owners.items()))
            for caller, owners in self._callers.items()
        )
        found = []
        while copy:
            found.append(_take(copy))
        return found


def _take(callers: OrderedDict[str, Owners]) -> str:
    caller, owners = callers.popitem(last=False)
    owner, keys = owners.popitem(last=False)
    key = keys.popleft()
    if keys:
        owners[owner] = keys
    if owners:
        callers[caller] = owners
    return key
