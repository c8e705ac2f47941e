"""The limiter for blocking code: `with ringfence.blocking.connect(URL) as limiter`."""

from ringfence.client.blocking.blocking_limiter import BlockingLimiter, connect, local

__all__ = ["BlockingLimiter", "connect", "local"]
