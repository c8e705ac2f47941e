"""Validation of a whole scenario, before a run of it: numbers, hosts, faults, rules and loads."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from ringfence.errors import ConfigError
from ringfence.limiter import Algorithm
from ringfence.rules import Descriptor, RuleSet, parse_limit
from ringfence.rules.loading.problems import RuleFileError
from ringfence.rules.loading.yaml_files import load_text
from simulations.judging.allowed_loss import hosts_of, members_of
from simulations.scenarios.bounds import BOUNDS
from simulations.scenarios.faults.arguments import check
from simulations.scenarios.latency import delay_s
from simulations.scenarios.log_loads import load_arrivals
from simulations.scenarios.rule_changes import format_fault
from simulations.scenarios.scenario import Fault, Holds, Load, Network, Scenario
from simulations.scenarios.seeds import stream
from simulations.world.named_rules import DOMAIN
from simulations.world.run import CLIENTS_PER_DATACENTER

__all__ = ["InvalidScenario", "Place", "validated"]

Place: TypeAlias = tuple[str | int, ...]
"""Names of fields and numbers of list items, from the scenario to a value."""

_ENDING = ("crash", "leave")
"""Faults that end nodes, which start again at the end of the fault."""
_UNNUMBERED = ("attack", "log")
"""Shapes of load with keys that have no number, so a batch cannot have the keys after one."""


class InvalidScenario(ConfigError):
    """Error for a scenario that cannot run. The message has the wrong field and the remedy."""

    def __init__(self, place: Place, what: str, fix: str = "correct it") -> None:
        super().__init__(f"{what}; {fix}")
        self.place = place
        """Place of the wrong value in the scenario."""
        self.what = what
        self.fix = fix


def validated(scenario: Scenario) -> Scenario:
    """Return the scenario unchanged. Raises `InvalidScenario` for the first part that is wrong."""
    _check_fields(scenario, Scenario, ())
    _check_name(scenario.name)
    _check_fields(scenario.network, Network, ("network",))
    _check_hosts(scenario)
    for number, fault in enumerate(scenario.faults):
        _check_fault(scenario, fault, ("faults", number))
    _check_remaining(scenario)
    rules = _rules_of(scenario)
    for number, load in enumerate(scenario.loads):
        _check_load(scenario, rules, load, ("loads", number))
    for number, holds in enumerate(scenario.holds):
        _check_fields(holds, Holds, ("holds", number))
        _check_rule(rules, holds.rule, ("holds", number, "rule"), is_for_slots=True)
    return scenario


@contextmanager
def _placed(place: Place) -> Iterator[None]:
    """Add the place to the errors of other modules."""
    try:
        yield
    except ConfigError as error:
        what, _, fix = str(error).rpartition("; ")
        raise InvalidScenario(place, f"{_named(place)}: {what}", fix) from error
    except ValueError as error:
        raise InvalidScenario(place, f"{_named(place)}: {error}") from error


def _named(place: Place) -> str:
    return ".".join(map(str, place))


def _check_fields(value: Struct, kind: type[Struct], place: Place) -> None:
    """Reject a value of another type, and fields with a wrong type or a number out of bounds."""
    if not isinstance(value, kind):
        what = f"{_named(place) or 'scenario'} must be a {kind.__name__}, got {value!r}"
        raise InvalidScenario(place, what)
    for field in fields(kind):
        where, got = (*place, field.name), getattr(value, field.name)
        try:
            msgspec.convert(got, field.type)
        except msgspec.ValidationError as error:
            known = field.type.__name__ if isinstance(field.type, type) else field.type
            what = f"{_named(where)} must be of type {known}, got {got!r}"
            raise InvalidScenario(where, what) from error
    for name, bounds in BOUNDS.get(kind, {}).items():
        number = getattr(value, name)
        if not bounds.allow(number):
            where = *place, name
            raise InvalidScenario(where, f"{_named(where)} must be {bounds}, got {number}")


def _check_name(name: str) -> None:
    """Reject a name that cannot be a part of the name of the report's file."""
    if not name.isprintable() or "/" in name or "\\" in name:
        what = f"name must be printable text without / and \\, got {name!r}"
        fix = "choose a name such as my-scenario, because the report's path contains it"
        raise InvalidScenario(("name",), what, fix)


def _check_hosts(scenario: Scenario) -> None:
    if scenario.nodes < scenario.datacenters:
        raise InvalidScenario(
            ("nodes",),
            f"nodes must be at least {scenario.datacenters}, one per data center, "
            f"got {scenario.nodes}",
            "add nodes or reduce datacenters",
        )
    try:
        delay_s(scenario.network.latency, ("dc1", "z1"), (f"dc{scenario.datacenters}", "z1"))
    except ValueError as error:
        what = f"{scenario.datacenters} data centers: {error}"
        raise InvalidScenario(("network", "latency"), what) from None


def _check_fault(scenario: Scenario, fault: Fault, place: Place) -> None:
    _check_fields(fault, Fault, place)
    with _placed(place):
        check(fault)
    if fault.at >= scenario.read_at:
        raise InvalidScenario(
            (*place, "at"),
            f"begin of fault '{format_fault(fault)}' must be before the end of the run at "
            f"{scenario.read_at:g} s, got {fault.at:g} s",
            "begin the fault earlier, or raise seconds or calm",
        )
    for name, letters, count in (
        ("node", "n", scenario.nodes),
        ("from", "n", scenario.nodes),
        ("datacenter", "dc", scenario.datacenters),
        ("zone", "z", scenario.zones),
    ):
        known = {f"{letters}{number + 1}" for number in range(count)}
        asked = str(fault.args.get(name, f"{letters}1"))
        separate = asked.split(",") if letters == "n" else [asked]
        unknown = [each for each in separate if each not in known]
        if unknown:
            raise InvalidScenario(
                (*place, "args", name),
                f"{name} of fault '{format_fault(fault)}' must be "
                f"{f'{letters}1 to {letters}{count}' if count > 1 else f'{letters}1'}, "
                f"got {unknown[0]}",
                "add hosts, or change the fault",
            )


def _check_remaining(scenario: Scenario) -> None:
    """Reject faults that leave a data center without a node at the end of the run."""
    ended: dict[str, tuple[float, int]] = {}
    """Time and number of the last fault that ends each host."""
    started: dict[str, float] = {}
    for number, fault in enumerate(scenario.faults):
        for name in hosts_of(fault, scenario) if fault.verb in _ENDING else ():
            ended[name] = max(ended.get(name, (0.0, 0)), (fault.at, number))
            if fault.until is not None and fault.until < scenario.read_at:
                started[name] = max(started.get(name, 0.0), fault.until)
    down = {name: end for name, end in ended.items() if end[0] > started.get(name, -1.0)}
    places = members_of(scenario)
    for datacenter in sorted({places[name][0] for name in down}):
        names = [name for name, place in places.items() if place[0] == datacenter]
        if down.keys() >= {*names}:
            number = max(down[name] for name in names)[1]
            fault = scenario.faults[number]
            raise InvalidScenario(
                ("faults", number),
                f"fault '{format_fault(fault)}' must leave a node of {datacenter} at the end of "
                f"the run at {scenario.read_at:g} s, got none",
                "give the fault fewer hosts, as in node=n1, or an earlier end, as in "
                f"{fault.verb}@5-15",
            )


def _rules_of(scenario: Scenario) -> RuleSet:
    if not scenario.rules.strip():
        what = f"rules must be the text of a rule file with domain {DOMAIN}, got no text"
        raise InvalidScenario(("rules",), what, "write `domain:` and `descriptors:` in it")
    try:
        rules = load_text(scenario.rules).rules
    except RuleFileError as error:
        first = error.problems[0]
        what = f"line {first.line} of rules: {first.place}: {first.what}"
        raise InvalidScenario(("rules",), what, first.fix) from error
    if rules.domains != (DOMAIN,):
        got = ", ".join(rules.domains)
        raise InvalidScenario(("rules",), f"domain of rules must be {DOMAIN}, got {got}")
    return rules


def _check_load(scenario: Scenario, rules: RuleSet, load: Load, place: Place) -> None:
    _check_fields(load, Load, place)
    costs = BOUNDS[Load]["cost"]
    for at, cost in enumerate(load.costs):
        if not costs.allow(cost):
            where = *place, "costs", at
            raise InvalidScenario(where, f"{_named(where)} must be {costs}, got {cost}")
    for text in load.limits.values():
        with _placed(place):
            parse_limit(text)
    for name in load.names:
        if name not in load.limits:
            _check_rule(rules, name, (*place, "rule" if name == load.rule else "also"))
    without_batch = f"shape {load.shape}" if load.shape in _UNNUMBERED else "limit"
    if load.batch > 1 and (load.shape in _UNNUMBERED or load.limit):
        where = *place, "batch"
        what = f"{_named(where)} must be 1 with {without_batch}, got {load.batch}"
        raise InvalidScenario(where, what)
    if load.also and load.limit and not load.overrides:
        where = *place, "also"
        what = f"{_named(where)} must be empty with an ad-hoc limit, got {load.also!r}"
        raise InvalidScenario(where, what, "remove it, or set overrides")
    if load.cost_after and load.limit:
        where = *place, "cost_after"
        raise InvalidScenario(where, f"{_named(where)} must be false with limit, got true")
    if load.settle_after_s > scenario.calm / 2:
        where = *place, "settle_after_s"
        what = f"{_named(where)} must be at most half of calm, got {load.settle_after_s:g}"
        raise InvalidScenario(where, what, f"use up to {scenario.calm / 2:g}, or raise calm")
    clients = scenario.datacenters * CLIENTS_PER_DATACENTER
    with _placed(place):
        load_arrivals(load, scenario.seconds, clients, stream(0, "validation"))


def _check_rule(rules: RuleSet, name: str, place: Place, *, is_for_slots: bool = False) -> None:
    """Reject the key of a load without a limit in the file, or with the wrong kind of limit."""
    limits = {
        key: match.rule.limit
        for key in dict.fromkeys(rule.path[-1][0] for rule in rules.rules())
        if (match := rules.match(DOMAIN, [Descriptor(((key, "k0"),))])[0]) is not None
    }
    fitting = [
        key
        for key, limit in limits.items()
        if limit is not None and (limit.algorithm is Algorithm.CONCURRENCY) == is_for_slots
    ]
    if name not in fitting:
        kind = "concurrency limit" if is_for_slots else "limit other than concurrency"
        raise InvalidScenario(
            place,
            f"{_named(place)} must be a key with a {kind} in the rules of domain {DOMAIN}, which "
            f"are {', '.join(fitting) or 'none'}; got {name!r}",
        )
