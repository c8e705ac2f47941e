"""Whether a fault that someone wrote by hand makes sense: its verb, its times, what it takes."""

from math import inf

from simulations.scenarios.faults import VERBS
from simulations.scenarios.scenario import Fault

__all__ = ["NEEDS", "check", "takes"]

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
    "errors": ("count", 1.0, 1e6),
    "clock_step": ("by_s", -1e9, 1e9),
    "clock_drift": ("ppm", -100_000.0, 100_000.0),
}
"""The number that a verb must be given, the least and the most that it may be."""
_WHOM = ("node", "zone", "datacenter")
_DOWN = ("moves", "seedless")
_MAY: dict[str, tuple[str, ...]] = {
    "crash": _DOWN,
    "leave": _DOWN,
    "cut": ("from", "one_way"),
    **dict.fromkeys(("loss", "repeats", "bursts", "corrupt", "replay"), ("from",)),
    **dict.fromkeys(("slow", "spikes", "clog", "reset"), ("from",)),
}


def takes(verb: str) -> tuple[str, ...]:
    """Name all that a verb may be given: whom it is about, how hard it is, and what else."""
    needed = NEEDS[verb][:1] if verb in NEEDS else ()
    return (*_WHOM, *needed, *_MAY.get(verb, ()))


def check(fault: Fault) -> None:
    """Raise `ValueError` that says what is wrong with a fault written by hand."""
    if fault.verb not in VERBS:
        raise ValueError(f"unknown fault {fault.verb!r}; known are {', '.join(VERBS)}")
    if fault.until is not None and fault.until < fault.at:
        raise ValueError(f"fault {fault} ends before it begins")
    known = takes(fault.verb)
    for name in fault.args:
        if name not in known:
            raise ValueError(f"{fault.verb} takes no {name!r}; it takes {', '.join(known)}")
    if fault.verb in NEEDS:
        name, least, most = NEEDS[fault.verb]
        value = fault.args.get(name, inf)
        if isinstance(value, str) or not least <= value <= most:
            raise ValueError(f"{fault.verb} needs {name}=NUMBER, from {least:g} to {most:g}")
