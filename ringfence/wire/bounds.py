"""How much one message may hold: what `encode` keeps to and `decode` insists on.

Every number a stranger's bytes can choose has its largest value here, so that no message costs its
reader more than its size suggests.
"""

__all__ = [
    "MAX_ARRAYS",
    "MAX_COST",
    "MAX_CREDENTIAL",
    "MAX_DEADLINE_MS",
    "MAX_DEPTH",
    "MAX_HELLO",
    "MAX_ITEMS",
    "MAX_KEY",
    "MAX_KEYS",
    "MAX_LEASES",
    "MAX_MOVED",
    "MAX_NUMBERS",
    "MAX_PACKED",
    "MAX_PARTS",
    "MAX_REASON",
    "MAX_REPORT_DECISIONS",
    "MAX_REPORT_KEYS",
    "MAX_REPORT_NAMED",
    "MAX_TEXT",
    "MAX_THROTTLED",
    "MAX_U64",
    "MAX_WRITERS",
    "MIN_KEY",
]

MAX_KEYS = 4096
"""Most keys in one `Request`; it has at least one."""
MIN_KEY = 8
"""Fewest bytes in a key."""
MAX_KEY = 128
"""Most bytes in a key: clients put a digest in the place of longer values."""
MAX_COST = 1 << 53
"""Most units that one check asks for: the largest count that every JSON reader keeps exact."""
MAX_DEADLINE_MS = 60_000
"""Longest time a sender may wait for its answer; the shortest is 1."""
MAX_U64 = (1 << 64) - 1
"""Largest sequence number, view hash, session, version, duration in nanoseconds or count."""
MAX_TEXT = 255
"""Most characters in a name, an address, a time zone."""
MAX_REASON = 500
"""Most characters in a reason; `encode` cuts a longer one."""
MAX_HELLO = 1024
"""Most bytes in a hello, and in any message before it."""
MAX_CREDENTIAL = 64
"""Most bytes in a hello's credential."""
MAX_LEASES = 16
"""Most leases of one key that one message tells the end of."""
MAX_MOVED = 8192
"""Most keys whose counters one message moves or copies."""
MAX_NUMBERS = 1 << 14
"""Most numbers in the state of one counter."""
MAX_PARTS = 1 << 16
"""Most messages that the counters of one shard are spread over."""
MAX_WRITERS = 256
"""Most data centers whose cells one counter has."""
MAX_PACKED = 1 << 19
"""Most bytes of packed members in one message."""
MAX_REPORT_KEYS = 512
"""Most rows in one `Report` of decisions."""
MAX_REPORT_NAMED = 128
"""Most rows of a `Report` that name a counter, instead of only its rule."""
MAX_REPORT_DECISIONS = 1 << 24
"""Most decisions in one `Report`: more than a process makes in a second."""
MAX_THROTTLED = 256
"""Most keys in one list of denied keys."""
MAX_ITEMS = 1 << 15
"""Most items in any array: members, counters, one level of the rules."""
MAX_ARRAYS = MAX_KEYS + 64
"""Most arrays in a message from a client: one for each limit of a `Request`, and a few more."""
MAX_DEPTH = 64
"""How deep the rules' arrays and maps may nest."""
