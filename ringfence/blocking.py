"""The limiter for code that blocks: `with ringfence.blocking.connect(URL) as limiter`."""

from ringfence.client.blocking.blocking_limiter import BlockingLimiter, connect, local

__all__ = ["BlockingLimiter", "connect", "local"]
