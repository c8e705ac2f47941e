"""Storage for the package `limits`, so that Flask-Limiter, slowapi and similar libraries count in a
cluster.

Importing this module registers four kinds of address with `limits`: `ringfence://` for a cluster
and `ringfence+local://` for this process only, each also with `async+` before it.
"""

try:
    import limits as _limits  # noqa: F401 - only to say what is missing
except ImportError as error:
    raise ImportError(
        "ringfence.integrations.limits needs the package limits; install it with its extra: "
        "pip install '.[limits]' in a checkout, or 'ringfence[limits]' where it is published"
    ) from error

from ringfence.integrations.limits.asynchronous import AsyncRingfenceStorage
from ringfence.integrations.limits.blocking import RingfenceStorage

__all__ = ["AsyncRingfenceStorage", "RingfenceStorage"]
