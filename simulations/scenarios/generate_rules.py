"""Generation of a rule file from a seed: all algorithms, with all their options.

Many limits are small and have short periods, so that the load of a run exceeds them. The algorithm
without a name, which is the default of rule files, is drawn most often.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import TypeAlias

__all__ = ["LENT_RULE", "generate_lent_rule", "generate_rules"]

_Fields: TypeAlias = dict[str, str | int]
_Options: TypeAlias = Callable[[_Fields, Random], None]

LENT_RULE = "lent"
"""Name of the rule whose units clients borrow at the end of a run."""
_ALWAYS = """\
domain: sim
descriptors:
  - key: exact
    rate_limit: {unit: day, requests_per_unit: 15, algorithm: sliding_window_log}
  - key: job
    rate_limit: {period: 20s, requests_per_unit: 2, algorithm: concurrency}
"""
"""A limit whose units all stay counted until the end of the run, and one of slots."""
_SHARED = """\
  - key: everywhere
    rate_limit: {unit: day, requests_per_unit: 400, algorithm: fixed_window, scope: global}
  - key: world
    rate_limit: {unit: minute, requests_per_unit: 600, algorithm: sliding_window, scope: global}
"""
_COUNTS = (2, 3, 4)
"""Numbers of rules that are drawn."""
_PERIODS = ("2s", "2s", "3s", "5s", "5s", "10s", "10s", "30s", "1 minute", "1 day")
_GOSSIPED_PERIODS = ("5s", "10s", "10s", "30s", "1 minute", "1 day")
"""Periods of limits whose counts travel between data centers; those have a minimum."""
_AMOUNTS = (1, 3, 5, 8, 12, 20)
_SPLIT_AMOUNTS = (6, 9, 20)
"""Amounts of limits of which each data center has a part of at least 2."""
_LENT_AMOUNTS = (200, 300, 500)
"""Amounts of the limit that is lent; nodes lend no units of a limit below 128."""
_LENT_ALGORITHMS = ("sliding_window", "sliding_window_log", "fixed_window", "token_bucket")
_SLOTS = (2, 5, 10)
"""Numbers of parts of a window; each divides all periods."""
_TIME_ZONES = ("UTC", "Europe/Zurich", "Asia/Kolkata", "America/Los_Angeles")
_RARE = 0.15
"""Probability of each option that few rules have."""


def generate_rules(random: Random, datacenters: int) -> str:
    """Generate the text of a rule file: some fixed rules, then `r1`, `r2` and so on."""
    text = _ALWAYS + _SHARED * (datacenters > 1)
    for number in range(random.choice(_COUNTS)):
        scope = _scope(random, datacenters)
        fields = _limit(random, scope)
        words = ", ".join(f"{name}: {value}" for name, value in fields.items())
        text += f"  - key: r{number + 1}\n"
        mode = random.choices(("", "shadow_mode", "quota_mode"), (10, 1, 1))[0]
        text += f"    {mode}: true\n" * bool(mode)
        text += f"    rate_limit: {{{words}}}\n"
    return text


def generate_lent_rule(random: Random) -> str:
    """Generate the rule whose units are lent; no unit expires during a run."""
    amount, algorithm = random.choice(_LENT_AMOUNTS), random.choice(_LENT_ALGORITHMS)
    return (
        f"  - key: {LENT_RULE}\n    rate_limit: "
        f"{{unit: day, requests_per_unit: {amount}, algorithm: {algorithm}}}\n"
    )


def _limit(random: Random, scope: Mapping[str, str]) -> _Fields:
    """Draw a limit with its options; each key of `scope` restricts them."""
    is_gossiped = scope.get("scope") == "global"
    is_split = "split" in scope.get("global", "")
    algorithms = dict(_ALGORITHMS)
    if is_gossiped:
        del algorithms["sliding_window_log"]
    weights = [weight for weight, _ in algorithms.values()]
    algorithm = random.choices(list(algorithms), weights)[0]
    fields: _Fields = {
        "period": random.choice(_GOSSIPED_PERIODS if is_gossiped else _PERIODS),
        "requests_per_unit": random.choice(_SPLIT_AMOUNTS if is_split else _AMOUNTS),
    }
    if algorithm != "sliding_window" or random.random() < 0.5:
        fields["algorithm"] = algorithm
    _ALGORITHMS[algorithm][1](fields, random)
    if is_split:
        fields.pop("mode", None)
    if random.random() < _RARE:
        fields["soft"] = random.choice(("10%", "50%"))
    if random.random() < 2 * _RARE:
        fields["on_failure"] = random.choice(("allow", "deny", "local"))
    if random.random() < _RARE:
        fields["leases"] = "false"
    return fields | dict(scope)


def _scope(random: Random, datacenters: int) -> dict[str, str]:
    """Draw which data centers share a limit; mostly none if there is one data center."""
    if random.random() < (0.5 if datacenters > 1 else 0.8):
        return {}
    home = f"dc{random.randint(1, datacenters)}"
    return random.choice(
        (
            {"scope": "global"},
            {"global": "{mode: split}"},
            {"global": f"{{mode: home, home: {home}}}"},
        )
    )


def _sliding(fields: _Fields, random: Random) -> None:
    if random.random() < 2 * _RARE:
        fields["slots"] = random.choice(_SLOTS)


def _fixed(fields: _Fields, random: Random) -> None:
    if random.random() < 0.5:
        del fields["period"]
        fields |= {
            "unit": random.choice(("day", "week", "month", "year")),
            "align": "calendar",
            "timezone": random.choice(_TIME_ZONES),
        }


def _bucket(fields: _Fields, random: Random) -> None:
    if random.random() < 0.5:
        fields["burst"] = random.choice((1, 4, 10, 25))


def _leaky(fields: _Fields, random: Random) -> None:
    _bucket(fields, random)
    if random.random() < 0.5:
        fields["mode"] = "queue"


def _log(_fields: _Fields, _random: Random) -> None:
    """Draw nothing: this algorithm has no options of its own."""


_ALGORITHMS: dict[str, tuple[float, _Options]] = {
    "sliding_window": (4.0, _sliding),
    "fixed_window": (2.0, _fixed),
    "token_bucket": (2.0, _bucket),
    "leaky_bucket": (2.0, _leaky),
    "sliding_window_log": (2.0, _log),
}
"""Weight of each algorithm in the draw, and the function that draws its options."""
