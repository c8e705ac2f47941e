"""Story of a violation: the faults, decisions and changes of ownership that led to it, in order.

The story has numbered steps. Each step has a place in a sequence diagram: the clients or a node.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Literal, TypeAlias

from msgspec import Struct

from simulations.reporting.outcome import KeyHistory, Outcome, OwnershipChange, Request, Violation
from simulations.scenarios.scenario import Fault

__all__ = ["CLIENTS", "STATE_TEXTS", "Step", "Story", "build_story", "most_telling"]

Kind: TypeAlias = Literal["fault", "end", "allowed", "denied", "state", "violation"]

CLIENTS = "clients"
"""Name of the lane of all clients."""
_MAX_STEPS = 10
_MAX_LANES = 7
_MARGIN_S = 0.001
_NODE = re.compile(r"\bn\d+\b")
STATE_TEXTS = {
    "ABSENT": "does not decide",
    "SENT": "has transferred the shard and waits for the acknowledgement",
    "MOVED": "has transferred the shard",
    "OWNED": "owns the shard and has its counters",
    "FRESH": "owns the shard, and started without counters",
    "COVERED": "decides for the unreachable owner, from a replica",
    "COVERED_BLIND": "decides for the unreachable owner, without a replica",
    "RETAKEN": "decides again, with the counters of its transfer",
    "RETAKEN_BLIND": "decides again, without counters",
    "": "has ended",
}
"""What a node does in each state of a shard."""
_DECIDING = ("OWNED", "FRESH", "COVERED", "COVERED_BLIND", "RETAKEN", "RETAKEN_BLIND")
_VERBS = {
    "crash": ("crashes", "starts again"),
    "leave": ("leaves", "starts again"),
    "pause": ("is suspended", "resumes"),
    "stall": ("is suspended", "resumes"),
    "cut": ("is cut off", "is connected again"),
    "clog": ("is clogged: its messages wait", "receives all messages that waited"),
    "slow": ("becomes slow", "is as fast as before"),
    "spikes": ("gets long delays", "has no long delays any more"),
    "busy": ("becomes busy", "is idle again"),
    "reset": ("loses its connections", ""),
    "limits": ("applies lower limits", "applies the usual limits again"),
    "errors": ("raises internal errors", "raises no more errors"),
    "clock_step": ("gets a wrong clock", ""),
    "clock_drift": ("gets a drifting clock", "has a clock without drift again"),
}
"""What happens to the target of a fault at its start and at its end."""


class Step(Struct, frozen=True):
    """One numbered event of a story."""

    at: float
    """Seconds since the start of the load."""
    kind: Kind
    lanes: tuple[str, ...]
    """Nodes of the event; of a request, the clients and the nodes that can have decided."""
    text: str
    count: int = 1
    """Number of similar requests that the step combines."""


class Story(Struct, frozen=True):
    """Events that led to a violation."""

    title: str
    opening: str
    """State at the start: the limit, and the owner of the key."""
    lanes: tuple[str, ...]
    """Columns of the diagram: the clients first, then nodes."""
    steps: tuple[Step, ...]
    left_out: int = 0
    """Number of steps before `steps` that are not shown."""

    def lines(self) -> list[str]:
        """Return the story as numbered lines of text."""
        found = [self.title, self.opening] if self.opening else [self.title]
        if self.left_out:
            found.append(f"     ({self.left_out} earlier steps are left out)")
        return found + [
            f"{number:3}. {step.at:7.2f} s  {step.text}"
            for number, step in enumerate(self.steps, 1)
        ]


def build_story(
    outcome: Outcome, violation: Violation | None = None, *, most: int = _MAX_STEPS
) -> Story:
    """Return the story of a violation, by default of the first violation that names a key."""
    violation = violation or most_telling(outcome)
    history = _history_of(outcome, violation)
    until = _horizon(outcome, violation, history)
    steps = sorted(_fault_steps(outcome.faults, until), key=lambda step: step.at)
    opening = ""
    if history is not None:
        steps = _steps_of_key(steps, history, until, most - 1)
        opening = _opening(history)
    last = max([violation.at, until - _MARGIN_S, *(step.at for step in steps)])
    text = f"{violation.property}: {violation.text}"
    steps.append(Step(last, "violation", tuple(_NODE.findall(violation.text)), text))
    kept = steps[-most:]
    return Story(
        f"{outcome.scenario.name}, seed {outcome.seed}: {violation.property}",
        opening,
        _lanes(kept, history),
        tuple(kept),
        len(steps) - len(kept),
    )


def _steps_of_key(
    faults: Sequence[Step], history: KeyHistory, until: float, most: int
) -> list[Step]:
    """Return all steps in order; when there are too many, leave out what matters least.

    First the answers of caches, then nodes that stop deciding, then denials and peeks.
    """
    states = [*_state_steps(history.changes, until)]
    requests = [each for each in history.requests if each.asked_at <= until]
    decided = [each for each in requests if each.source != "cache"]
    taken = [each for each in states if not _is_minor(each)]
    charged = [each for each in decided if each.allowed and each.kind != "peek"]
    found: list[Step] = []
    for some_states, some_requests, is_merged in (
        (states, requests, False),
        (states, decided, False),
        (taken, decided, True),
        (taken, charged, True),
    ):
        others = sorted([*faults, *some_states], key=lambda step: step.at)
        found = _with_requests(others, some_requests, history, is_merged=is_merged)
        if len(found) <= most:
            break
    return found


def most_telling(outcome: Outcome) -> Violation:
    """Return the first violation that names a key with a history, otherwise the first one."""
    return next(
        (each for each in outcome.violations if _history_of(outcome, each) is not None),
        outcome.violations[0],
    )


def _history_of(outcome: Outcome, violation: Violation) -> KeyHistory | None:
    judged = [each for each in outcome.histories if each.is_judged]
    for history in judged:
        if f"{history.name}:" in violation.text or f"{history.name} " in violation.text:
            return history
    return next((each for each in judged if violation.text.startswith(f"{each.key} ")), None)


def _horizon(outcome: Outcome, violation: Violation, history: KeyHistory | None) -> float:
    """Return the time until which events can have led to a violation.

    The time of a violation may be the start of a period in which too much was admitted.
    """
    if violation.property == "over_admission" and history is not None:
        end = violation.at + history.period_s
        allowed = [each.answered_at for each in history.requests if each.allowed]
        return max([violation.at, *(at for at in allowed if at <= end)])
    return max(violation.at, 0.0) + _MARGIN_S


def _opening(history: KeyHistory) -> str:
    owners = [
        f"{span.row} {STATE_TEXTS.get(span.state, span.state)}"
        for span in history.states
        if span.start <= 0 <= span.end and span.state in _DECIDING
    ]
    return f"{history.name} has a limit of {history.limit}. At the start: {'; '.join(owners)}."


def _fault_steps(faults: Iterable[Fault], until: float) -> Iterator[Step]:
    for fault in faults:
        target, lanes = _target(fault)
        begin, end = _VERBS.get(fault.verb, (f"has fault {fault.verb}", f"has no {fault.verb} now"))
        details = "".join(
            f", {name} {value}" for name, value in fault.args.items() if name not in _TARGETS
        )
        if fault.at <= until:
            yield Step(fault.at, "fault", lanes, f"{target} {begin}{details}.")
        if fault.until is not None and end and fault.until <= until:
            yield Step(fault.until, "end", lanes, f"{target} {end}.")


_TARGETS = ("node", "zone", "datacenter", "from")


def _target(fault: Fault) -> tuple[str, tuple[str, ...]]:
    """Return the words for the target of a fault, and its lanes."""
    words = [str(fault.args[name]) for name in ("node", "zone", "datacenter") if name in fault.args]
    lanes = tuple(str(fault.args["node"]).split(",")) if "node" in fault.args else ()
    text = words[0] if words else "every node"
    if len(lanes) > 1:
        text = f"each of {', '.join(lanes[:-1])} and {lanes[-1]}"
    if "from" in fault.args:
        text += f" (towards {fault.args['from']})"
    return text, lanes


def _state_steps(changes: Iterable[OwnershipChange], until: float) -> Iterator[Step]:
    """Yield a step for each change of the node that decides."""
    for change in changes:
        is_relevant = change.after in _DECIDING or change.before in _DECIDING
        if 0 < change.at <= until and is_relevant and change.after != change.before:
            does = STATE_TEXTS.get(change.after, change.after)
            text = f"{change.node} {does} ({change.after}, by {change.event})."
            yield Step(change.at, "state", (change.node,), text)


def _with_requests(
    steps: Sequence[Step],
    requests: Sequence[Request],
    history: KeyHistory,
    *,
    is_merged: bool,
) -> list[Step]:
    """Insert the requests between the steps; similar requests without a step between are one.

    `is_merged` also combines similar requests with other requests between them.
    """
    times = [step.at for step in steps]

    def kind(request: Request) -> tuple[int, bool, str, tuple[str, ...], str]:
        place = sum(at <= request.answered_at for at in times)
        return place, request.allowed, request.source, request.decided_by, request.kind

    found = [*steps]
    ordered = sorted(requests, key=lambda request: (request.answered_at, request.client))
    if is_merged:
        ordered.sort(key=kind)
    for (_, allowed, source, nodes, what), group in groupby(ordered, kind):
        same = [*group]
        found.append(
            Step(
                same[0].answered_at,
                "allowed" if allowed else "denied",
                (CLIENTS, *nodes),
                _sentence(same, history, source, nodes, what),
                len(same),
            )
        )
    return sorted(found, key=lambda step: step.at)


def _sentence(
    same: Sequence[Request], history: KeyHistory, source: str, nodes: tuple[str, ...], what: str
) -> str:
    units = sum(request.cost for request in same)
    verdict = "counts" if what == "charge" else "allows" if same[0].allowed else "denies"
    clients = [*dict.fromkeys(request.client for request in same)]
    count = f"a {what}" if len(same) == 1 else f"{len(same)} {what}s"
    cost = "" if units == len(same) else f" of {units} units"
    until = f" until {same[-1].answered_at:.2f} s" if len(same) > 1 else ""
    who = f"{' or '.join(nodes)} ({source})" if nodes else f"The {source}"
    return f"{who} {verdict} {count}{cost} of {' and '.join(clients)} for {history.name}{until}."


def _is_minor(step: Step) -> bool:
    """Return whether a step only says that a node stopped deciding."""
    return step.kind == "state" and not any(f"({name}," in step.text for name in _DECIDING)


def _lanes(steps: Sequence[Step], history: KeyHistory | None) -> tuple[str, ...]:
    nodes = [lane for step in steps for lane in step.lanes if lane != CLIENTS]
    if history is not None:
        nodes += [span.row for span in history.states if span.state in _DECIDING]
    ordered = sorted(dict.fromkeys(nodes), key=lambda name: (len(name), name))
    return (CLIENTS, *ordered[: _MAX_LANES - 1])
