"""What `check_many` does for each of its requests, compiled where there was a C compiler."""

try:
    from ringfence.client.requests._batch_ops import decisions, find_lone
except ImportError:
    from ringfence.client.requests.batch_ops_plain import decisions, find_lone

__all__ = ["decisions", "find_lone"]
