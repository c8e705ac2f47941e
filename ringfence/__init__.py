"""Ringfence: a distributed rate limiter without a central store.

`connect` opens a client that asks the node that owns each key directly. `local` opens the same
limiter in this process, for tests and small applications. `ringfence.blocking` has both functions
for blocking code.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from ringfence.errors import (
    AccessDenied,
    ConfigError,
    InvalidLimit,
    LocalProtocolError,
    PeerUnavailable,
    RemoteProtocolError,
    RingfenceError,
    UntrustedPeer,
)

if TYPE_CHECKING:
    from ringfence import blocking
    from ringfence.client.connect import RulesSource, connect, local
    from ringfence.client.decision import Decision, SlotUnavailable, Status
    from ringfence.client.limiter import Limiter
    from ringfence.client.requests.descriptors import Descriptors
    from ringfence.client.reservation import Reservation
    from ringfence.limiter import Algorithm, Calendar, Limit
    from ringfence.rules import Descriptor, Rule, RuleSet, group_address, parse_limit
    from ringfence.wire import Source

__version__ = "0.1.0"

__all__ = [
    "__version__",
    "connect",
    "local",
    "blocking",
    "Limiter",
    "Decision",
    "Status",
    "Source",
    "Descriptor",
    "Descriptors",
    "RulesSource",
    "Limit",
    "Algorithm",
    "Calendar",
    "parse_limit",
    "group_address",
    "Reservation",
    "Rule",
    "RuleSet",
    "RingfenceError",
    "AccessDenied",
    "ConfigError",
    "InvalidLimit",
    "LocalProtocolError",
    "PeerUnavailable",
    "RemoteProtocolError",
    "SlotUnavailable",
    "UntrustedPeer",
]

_NAMES = {
    "ringfence.client.connect": ("RulesSource", "connect", "local"),
    "ringfence.client.decision": ("Decision", "SlotUnavailable", "Status"),
    "ringfence.client.limiter": ("Limiter",),
    "ringfence.client.requests.descriptors": ("Descriptors",),
    "ringfence.client.reservation": ("Reservation",),
    "ringfence.limiter": ("Algorithm", "Calendar", "Limit"),
    "ringfence.rules": ("Descriptor", "Rule", "RuleSet", "group_address", "parse_limit"),
    "ringfence.wire": ("Source",),
}
"""Public names by module. They are imported at their first use: a node needs no client."""
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name == "blocking":
        return import_module("ringfence.blocking")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
