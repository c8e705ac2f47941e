"""Ringfence: a distributed rate limiter without a central store.

`connect` opens a client that asks the node that owns each key directly. `local` opens the same
limiter in this process, for tests and small applications. `ringfence.blocking` has both functions
for blocking code.
"""

from ringfence import blocking
from ringfence.client import (
    Decision,
    Descriptors,
    Limiter,
    RulesSource,
    SlotUnavailable,
    Status,
    connect,
    local,
)
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
