"""Bounds of the fields and sizes of messages, which `encode` and `decode` both enforce.

Each number that a sender can choose has its maximum here. So no message costs its receiver more
than its size suggests.
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
    "MAX_ORIGINS",
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
"""Maximum number of keys in one `Request`; the minimum is one."""
MIN_KEY = 8
"""Minimum size of a key in bytes."""
MAX_KEY = 128
"""Maximum size of a key in bytes; clients replace longer values by a digest."""
MAX_COST = 1 << 53
"""Maximum cost of one check: the largest integer that every JSON parser keeps exact."""
MAX_DEADLINE_MS = 60_000
"""Maximum deadline of a request in milliseconds; the minimum is 1."""
MAX_U64 = (1 << 64) - 1
"""Maximum of sequence numbers, view hashes, sessions, versions, durations in ns, and counts."""
MAX_TEXT = 255
"""Maximum characters of a name, an address or a time zone."""
MAX_REASON = 500
"""Maximum characters of a reason; `encode` truncates a longer one."""
MAX_HELLO = 1024
"""Maximum bytes of a hello, and of any message before it."""
MAX_CREDENTIAL = 64
"""Maximum bytes of the credential in a hello."""
MAX_LEASES = 16
"""Maximum number of leases of one key that one message returns."""
MAX_MOVED = 8192
"""Maximum number of keys whose counters one message transfers or replicates."""
MAX_NUMBERS = 1 << 14
"""Maximum length of the state of one counter, in integers."""
MAX_ORIGINS = 32
"""Maximum number of origins and marks of the counters of one shard."""
MAX_PARTS = 1 << 16
"""Maximum number of messages that carry the counters of one shard."""
MAX_WRITERS = 256
"""Maximum number of data centers with window counts in one counter."""
MAX_PACKED = 1 << 19
"""Maximum bytes of packed membership records in one message."""
MAX_REPORT_KEYS = 512
"""Maximum number of rows in one `Report`."""
MAX_REPORT_NAMED = 128
"""Maximum number of rows of a `Report` that name a counter instead of a rule."""
MAX_REPORT_DECISIONS = 1 << 24
"""Maximum number of decisions in one `Report`: more than a process makes in a second."""
MAX_THROTTLED = 256
"""Maximum number of keys in one list of denied keys."""
MAX_ITEMS = 1 << 15
"""Maximum length of any array: members, counters, one level of the rules."""
MAX_ARRAYS = MAX_KEYS + 64
"""Maximum number of arrays in a client's message: one per limit of a `Request`, and a few more."""
MAX_DEPTH = 64
"""Maximum nesting depth of the arrays and maps of rules."""
