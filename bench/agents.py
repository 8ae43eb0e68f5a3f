"""What a turn of an agent costs beside the agent, how many events go through, and how soon an
agent can work.

    python bench/agents.py [--rounds 10] [--json]

The real programs speak to stand-ins for the models' APIs on this machine.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.agent_streams import stream
from bench.measuring import Board, Spread, say, settle
from bench.own_agents import EQUIPPED, PROGRAMS, Agent, Raw, first_replies, install, turn
from bench.own_spaces import Daemon, open_daemon
from bench.places import (
    add_common_options,
    add_rehearsal_option,
    positive,
    run_main,
    workplace,
)
from bench.projects import Shape, make_project
from bench.reporting import Report, Row, in_ms, machine
from tests.agents.standins import serving

SHOWN = ("files", "agents", "events", "wide", "rounds")
SCRIPTED = Agent("scripted", {})
SHARE, OWN_MS = 0.10, 30.0
"""A turn costs at most so much more than the program alone: the larger of the two."""


def main() -> None:
    options = parse()
    with workplace(options.folder) as place, ExitStack() as stack:
        report = Report("agents", {name: getattr(options, name) for name in SHOWN}, machine(place))
        standin = stack.enter_context(serving())
        agents = found_agents(report, standin.url)
        daemon = stack.enter_context(open_daemon(place / "data"))
        install(daemon, [agent.name for agent in agents])
        comparison = Comparison(options, daemon, report)
        for agent in (SCRIPTED, *agents):
            comparison.turns(agent)
        comparison.streams()
        project = place / "project"
        make_project(project, Shape(options.files, options.bytes))
        daemon.base = daemon.client.make_base(str(project)).id
        for agent in (SCRIPTED, *agents[:1]):
            comparison.can_work(agent)
        comparison.tell([SCRIPTED, *agents])
        report.show(as_json=options.json)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--files", type=positive, default=50_000, help="in the project")
    parser.add_argument("--bytes", type=positive, default=4000, help="each, on average")
    parser.add_argument("--agents", type=positive, default=50, help="that stream at once")
    parser.add_argument("--events", type=positive, default=4000, help="of each of them")
    parser.add_argument("--wide", type=positive, default=20, help="that begin at once")
    add_common_options(parser, rounds=10)
    add_rehearsal_option(parser)
    return parser.parse_args()


def found_agents(report: Report, url: str) -> list[Agent]:
    keys = {"ANTHROPIC_API_KEY": "dummy", "OPENAI_API_KEY": "dummy"}
    wanted = (
        ("claude", Agent("claude-code", {"ANTHROPIC_BASE_URL": url, **keys})),
        ("codex", Agent("codex-cli", {"OPENAI_BASE_URL": f"{url}/v1", **keys}, model="small")),
    )
    found = []
    for program, agent in wanted:
        if (PROGRAMS / "node_modules" / ".bin" / program).exists():
            found.append(agent)
        else:
            report.skip(agent.name, "`make setup` did not install it")
    return found


class Comparison:
    def __init__(self, options: argparse.Namespace, daemon: Daemon, report: Report) -> None:
        self._options = options
        self._daemon = daemon
        self._report = report
        self._board = Board()
        self._wrong = 0

    def turns(self, agent: Agent) -> None:
        """One after the other, in the same space, in turn."""
        space = self._daemon.client.create(agent=agent.name)
        raws = {_raw(agent): Raw(self._daemon, agent)}
        if agent is not SCRIPTED:
            raws[_equipped(agent)] = Raw(self._daemon, agent, EQUIPPED)
        if self._options.rehearse:
            turn(space, agent)
            for raw in raws.values():
                raw.turn(space)
        for number in range(self._options.rounds):
            say(f"{agent.name}: a turn, round {number + 1} of {self._options.rounds}")
            settle()
            self._board.add(_own(agent), number, turn(space, agent))
            for name, raw in raws.items():
                self._board.add(name, number, raw.turn(space))
        space.remove(force=True)

    def streams(self) -> None:
        for number in range(min(3, self._options.rounds)):
            say(f"{self._options.agents} agents stream, round {number + 1}")
            settle()
            streamed = stream(self._daemon, self._options.agents, self._options.events)
            self._board.add(STREAM, number, streamed.rate)
            self._board.add(FROM_START, number, streamed.rate_from_start)
            self._wrong += streamed.wrong

    def can_work(self, agent: Agent) -> None:
        for number in range(self._options.rounds):
            say(f"{agent.name} can work, round {number + 1} of {self._options.rounds}")
            self._board.add(_can(agent, 1), number, first_replies(self._daemon, agent, 1)[0])
        settle()
        for took_s in first_replies(self._daemon, agent, self._options.wide):
            self._board.add(_can(agent, self._options.wide), 0, took_s)

    def tell(self, agents: list[Agent]) -> None:
        board, report = self._board, self._report
        for name in board.names:
            if name in (STREAM, FROM_START):
                report.rows.append(Row(name, "/s", board.spread(name)))
            else:
                report.rows.append(Row(name, "ms", in_ms(board.spread(name))))
        for agent in agents:
            report.add_ratio(board, _own(agent), _raw(agent))
            more = in_ms(board.difference(_own(agent), _raw(agent)))
            allowed = max(OWN_MS, SHARE * board.spread(_raw(agent)).median * 1e3)
            report.at_most(f"{agent.name}: our own cost of a turn", round(allowed, 1), "ms", more)
            if agent is not SCRIPTED:
                beside = in_ms(board.difference(_own(agent), _equipped(agent)))
                name = f"… beside what {agent.name} takes for its tools"
                report.at_most(name, round(allowed, 1), "ms", beside)
        report.at_least("events of all agents together", 20_000, "/s", board.spread(STREAM))
        wrong = Spread(self._wrong, self._wrong, self._wrong, 1)
        report.at_most("events lost, twice or out of order", 0, "events", wrong)


STREAM = "carrel: events of scripted agents at once"
FROM_START = "… from when they were asked for"


def _own(agent: Agent) -> str:
    return f"carrel: a turn of {agent.name}"


def _raw(agent: Agent) -> str:
    return f"{agent.name} itself, in the same sandbox"


def _equipped(agent: Agent) -> str:
    return f"… with the tools of the space, {agent.name}"


def _can(agent: Agent, count: int) -> str:
    return f"create and first reply, {agent.name}, {count} at once"


if __name__ == "__main__":
    run_main(main)
