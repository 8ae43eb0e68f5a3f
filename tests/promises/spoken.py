"""Which command lines the programs of this folder say, as their source has them.

A command line is what is given to the fixture `carrel`, to a method of it, or to a function whose
first argument it is; and each `carrel …` in a text of such a line, which a shell in a space reads.
Names and starred arguments count as all that the function, its parameters, those who call it, or
its module give them. What only comes to be when a test runs is no word of a line.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path

from carrel.cli.commands import find_command
from carrel.cli.parser import PROGRAM_OPTIONS

Line = list[str]
UNKNOWN = "?"
PROGRAM = "carrel"
MOST = 500
"""Ways to read one call; those of this folder have a dozen."""
IN_TEXT = re.compile(r"(?<![\w./\-])carrel ([^;|&\n]+)")


def said_in(folder: Path) -> Iterator[tuple[str, Line]]:
    """Each command with the words after it."""
    for file in sorted(folder.glob("test_*.py")):
        for line in lines_of(ast.parse(file.read_text())):
            command = find_command(without_program_options(line))
            if command is not None:
                yield command


def without_program_options(line: Line) -> Line:
    values = {flag: one.kind != "flag" for one in PROGRAM_OPTIONS for flag in one.flags}
    while line and line[0] in values:
        line = line[2 if values[line[0]] else 1 :]
    return line


def lines_of(module: ast.Module) -> Iterator[Line]:
    around = Names(module.body)
    functions = [one for one in ast.walk(module) if isinstance(one, ast.FunctionDef)]
    scopes = {one.name: Names([one], around) for one in functions}
    # What helpers are called with, before what they say themselves.
    for function in functions:
        for call in calls_in(function):
            if isinstance(call.func, ast.Name) and call.func.id in scopes:
                helper = next(one for one in functions if one.name == call.func.id)
                scopes[helper.name].give(helper, call, scopes[function.name])
    for function in functions:
        for call in calls_in(function):
            if (words := said_by(call)) is not None:
                for line in scopes[function.name].readings(words):
                    yield line
                    yield from in_text(line)


def calls_in(node: ast.AST) -> list[ast.Call]:
    return [one for one in ast.walk(node) if isinstance(one, ast.Call)]


def said_by(call: ast.Call) -> list[ast.expr] | None:
    """The words of a call, if it is one of the program."""
    function = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    if isinstance(function, ast.Name) and function.id == PROGRAM:
        code = isinstance(call.func, ast.Attribute) and call.func.attr == "bad"
        return call.args[1:] if code else call.args
    first = call.args[0] if call.args else None
    return call.args[1:] if isinstance(first, ast.Name) and first.id == PROGRAM else None


def in_text(line: Line) -> Iterator[Line]:
    """What a shell is told in one of the words."""
    for text in line:
        for found in IN_TEXT.findall(text):
            try:
                yield shlex.split(found)
            except ValueError:
                yield found.split()


class Names:
    """What the names of a function may stand for."""

    def __init__(self, nodes: list[ast.stmt], around: Names | None = None) -> None:
        self.around = around
        self.values: dict[str, list[ast.expr]] = {}
        whole = [one for node in nodes for one in ast.walk(node)]
        if around is None:
            whole = [*nodes]
        for node in whole:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self.add(target, node.value)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                self.add(node.target, node.value)
            elif isinstance(node, ast.For | ast.comprehension):
                for value in items(node.iter):
                    self.add(node.target, value)
            elif isinstance(node, ast.FunctionDef):
                for decorator in node.decorator_list:
                    self.add_parameters(decorator)

    def add_parameters(self, decorator: ast.expr) -> None:
        if not isinstance(decorator, ast.Call) or "parametrize" not in ast.unparse(decorator.func):
            return
        named, values = decorator.args
        if isinstance(values, ast.Name) and self.around is not None:
            values = self.around.values.get(values.id, [values])[0]
        target: ast.expr = named
        if isinstance(named, ast.Constant):
            parts = [ast.Name(one.strip()) for one in str(named.value).split(",")]
            target = parts[0] if len(parts) == 1 else ast.Tuple(list(parts))
        elif isinstance(named, ast.Tuple):
            target = ast.Tuple([ast.Name(str(ast.literal_eval(one))) for one in named.elts])
        for value in items(values):
            self.add(target, value)

    def add(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self.values.setdefault(target.id, []).append(value)
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, its in zip(target.elts, value.elts, strict=False):
                self.add(one, its)

    def give(self, helper: ast.FunctionDef, call: ast.Call, caller: Names) -> None:
        """What a call gives to the parameters of a helper."""
        own = helper.args.args
        for parameter, given in zip(own, call.args, strict=False):
            for text in caller.texts(given):
                self.add(ast.Name(parameter.arg), ast.Constant(text))
        if helper.args.vararg is not None:
            for line in caller.readings(call.args[len(own) :]):
                words: list[ast.expr] = [ast.Constant(word) for word in line]
                self.add(ast.Name(helper.args.vararg.arg), ast.Tuple(words))

    def of(self, name: str) -> list[ast.expr]:
        found = self.values.get(name)
        if found is None and self.around is not None:
            return self.around.of(name)
        return found or []

    def readings(self, words: list[ast.expr]) -> Iterator[Line]:
        for parts in islice(product(*map(self.parts, words)), MOST):
            yield [word for part in parts for word in part]

    def parts(self, word: ast.expr, deep: int = 0) -> list[Line]:
        """What an argument may be: one word, or with a star several."""
        if deep > 4:
            return [[UNKNOWN]]
        if isinstance(word, ast.Starred):
            return self.several(word.value, deep)
        return [[text] for text in self.texts(word)] or [[UNKNOWN]]

    def several(self, node: ast.expr, deep: int) -> list[Line]:
        if isinstance(node, ast.Name):
            found = [one for value in self.of(node.id) for one in self.several(value, deep + 1)]
            return found or [[]]
        if isinstance(node, ast.IfExp):
            return self.several(node.body, deep) + self.several(node.orelse, deep)
        if isinstance(node, ast.BoolOp):
            return [one for value in node.values for one in self.several(value, deep)]
        if isinstance(node, ast.Tuple | ast.List):
            every = product(*(self.parts(one, deep + 1) for one in node.elts))
            return [[word for part in parts for word in part] for parts in islice(every, MOST)]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            # "a b c".split()
            return [text.split() for text in self.texts(node.func.value)] or [[]]
        if isinstance(node, ast.Subscript):
            return self.several(node.value, deep)
        return [[]]

    def texts(self, node: ast.expr) -> list[str]:
        if isinstance(node, ast.Constant):
            return [node.value] if isinstance(node.value, str) else []
        if isinstance(node, ast.JoinedStr):
            pieces = (
                one.value if isinstance(one, ast.Constant) else UNKNOWN for one in node.values
            )
            return ["".join(map(str, pieces))]
        if isinstance(node, ast.IfExp):
            return self.texts(node.body) + self.texts(node.orelse)
        if isinstance(node, ast.Name):
            return [text for one in self.of(node.id) if one is not node for text in self.flat(one)]
        return []

    def flat(self, node: ast.expr) -> list[str]:
        return self.texts(node) if isinstance(node, ast.Constant | ast.JoinedStr) else []


def items(node: ast.expr) -> list[ast.expr]:
    """What a literal list has in it; of `dict.items()` and the like nothing is known."""
    return list(node.elts) if isinstance(node, ast.Tuple | ast.List | ast.Set) else []
