"""Whose turn it is."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.service.requests.stream import Line

WAITING = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz")), max_size=30)


def filled(waiting: list[tuple[str, str]]) -> Line:
    line = Line()
    for number, (caller, owner) in enumerate(waiting):
        line.add(str(number), caller, owner)
    return line


def drained(line: Line) -> list[str]:
    return [line.take() for _ in range(len(line))]


def test_one_owner_is_served_in_the_order_of_asking() -> None:
    line = filled([("a", "x")] * 4)
    assert drained(line) == ["0", "1", "2", "3"]


def test_who_asks_for_one_waits_for_nobodys_hundred() -> None:
    line = filled([("a", "x")] * 100 + [("a", "y"), ("b", "z")])
    assert line.place("100") <= 3
    assert line.place("101") == 2


def test_owners_of_one_caller_do_not_outweigh_another_caller() -> None:
    line = filled([("a", owner) for owner in "xyz" for _ in range(10)] + [("b", "x")] * 10)
    first = drained(line)[:20]
    assert sum(int(key) >= 30 for key in first) == 10


def test_nobody_waits() -> None:
    with pytest.raises(LookupError):
        Line().take()


def test_who_may_not_keeps_its_place() -> None:
    line = filled([("a", "x")] * 2 + [("b", "x")] * 2)
    assert line.take(lambda caller: caller == "b") == "2"
    assert drained(line) == ["0", "3", "1"]
    with pytest.raises(LookupError):
        filled([("a", "x")]).take(lambda _: False)


def test_leaving_twice_is_leaving() -> None:
    line = filled([("a", "x"), ("a", "x")])
    line.leave("0")
    line.leave("0")
    assert (len(line), line.place("0"), line.place("1"), drained(line)) == (1, 0, 1, ["1"])


@given(WAITING)
def test_the_place_is_the_turn(waiting: list[tuple[str, str]]) -> None:
    line = filled(waiting)
    places = {str(number): line.place(str(number)) for number in range(len(waiting))}
    assert {key: place for place, key in enumerate(drained(line), start=1)} == places


@given(WAITING)
def test_turns_are_even_as_long_as_both_wait(waiting: list[tuple[str, str]]) -> None:
    line = filled(waiting)
    left = Counter(caller for caller, _ in waiting)
    served: Counter[str] = Counter()
    for key in drained(line):
        caller = waiting[int(key)][0]
        served[caller] += 1
        left[caller] -= 1
        if min(left["a"], left["b"]) > 0:
            assert abs(served["a"] - served["b"]) <= 1


@given(WAITING, st.sets(st.integers(0, 29)))
def test_who_leaves_changes_nothing_for_the_others(
    waiting: list[tuple[str, str]], leaving: set[int]
) -> None:
    line = filled(waiting)
    for number in leaving:
        line.leave(str(number))
    stay = [number for number in range(len(waiting)) if number not in leaving]
    found = drained(line)
    assert sorted(found, key=int) == [str(number) for number in stay]
    for owner in set(waiting):
        own = [key for key in found if waiting[int(key)] == owner]
        assert own == sorted(own, key=int)
