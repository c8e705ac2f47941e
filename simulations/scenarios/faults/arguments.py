"""Validation of a fault that a user has written: its kind, its times and its arguments."""

from math import inf

from simulations.scenarios.faults.injection import VERBS
from simulations.scenarios.scenario import Fault

__all__ = ["MAX_STALL_S", "NEEDS", "argument_names", "check"]

MAX_STALL_S = 5.0
"""Maximum duration of a `stall`; a longer one is a `pause`."""

NEEDS: dict[str, tuple[str, float, float]] = {
    "loss": ("share", 0.0, 1.0),
    "repeats": ("share", 0.0, 1.0),
    "bursts": ("share", 0.0, 1.0),
    "corrupt": ("share", 0.0, 1.0),
    "replay": ("share", 0.0, 1.0),
    "slow": ("extra_ms", 0.0, 60_000.0),
    "spikes": ("mean_ms", 0.0, 5_000.0),
    "busy": ("cost_ms", 0.0, 10_000.0),
    "limits": ("part", 0.0, 1.0),
    "rules": ("part", 0.0, 1.0),
    "errors": ("count", 1, 1_000_000),
    "clock_step": ("by_s", -1e9, 1e9),
    "clock_drift": ("ppm", -100_000.0, 100_000.0),
}
"""Required number of a verb: its name, minimum and maximum; an integer if both are integers."""
_TARGETS = ("node", "zone", "datacenter")
_RESTART_OPTIONS = ("moves", "seedless")
_FLAGS = (*_RESTART_OPTIONS, "one_way")
"""Arguments that are 1 or absent."""
_OPTIONS: dict[str, tuple[str, ...]] = {
    "crash": _RESTART_OPTIONS,
    "leave": _RESTART_OPTIONS,
    "cut": ("from", "one_way"),
    **dict.fromkeys(("loss", "repeats", "bursts", "corrupt", "replay"), ("from",)),
    **dict.fromkeys(("slow", "spikes", "clog", "reset"), ("from",)),
}


def argument_names(verb: str) -> tuple[str, ...]:
    """Return the names of all arguments of a kind of fault: targets, required number and
    options."""
    needed = NEEDS[verb][:1] if verb in NEEDS else ()
    return (*_TARGETS, *needed, *_OPTIONS.get(verb, ()))


def check(fault: Fault) -> None:
    """Raise `ValueError` if a fault that a user has written is invalid."""
    if fault.verb not in VERBS:
        raise ValueError(f"verb of a fault must be one of {', '.join(VERBS)}, got {fault.verb!r}")
    if not 0 <= fault.at < inf:
        raise ValueError(f"begin of a fault must be seconds of at least 0, got {fault.at}")
    if fault.until is not None and not fault.at <= fault.until < inf:
        raise ValueError(f"end of a fault must not be before its begin, got {fault}")
    if fault.verb == "stall":
        if fault.until is None:
            raise ValueError(f"stall must have an end, as in stall@5-8, got {fault}")
        if round(fault.until - fault.at, 6) > MAX_STALL_S:
            longest = f"{MAX_STALL_S:g} s"
            raise ValueError(
                f"stall must last at most {longest}, got {fault}; end it earlier, or use pause"
            )
    known = argument_names(fault.verb)
    for name in fault.args:
        if name not in known:
            raise ValueError(
                f"argument of {fault.verb} must be one of {', '.join(known)}, got {name!r}"
            )
        if name in _FLAGS and fault.args[name] != 1:
            raise ValueError(f"{name} of {fault.verb} must be 1, got {fault.args[name]!r}")
    _check_targets(fault)
    if fault.verb in NEEDS:
        name, least, most = NEEDS[fault.verb]
        value = fault.args.get(name, inf)
        is_whole = isinstance(least, int)
        if isinstance(value, str) or not least <= value <= most or (is_whole and value % 1):
            kind = "INTEGER" if is_whole else "NUMBER"
            raise ValueError(f"{fault.verb} must have {name}={kind}, from {least:g} to {most:g}")


def _check_targets(fault: Fault) -> None:
    """Reject a fault with two kinds of targets, and a fault between a group and itself."""
    given = [name for name in _TARGETS if name in fault.args]
    if len(given) > 1:
        raise ValueError(
            f"targets of {fault.verb} must be given by one of {', '.join(_TARGETS)}, got "
            f"{' and '.join(given)}; name all hosts with node=n1,n2"
        )
    node, other = (set(str(fault.args.get(name, "")).split(",")) for name in ("node", "from"))
    if "from" in fault.args and node == other:
        raise ValueError(
            f"from of {fault.verb} must name other hosts than node, got "
            f"{fault.args['from']} for both; remove from, or name other hosts"
        )
