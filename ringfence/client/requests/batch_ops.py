"""Operations that `check_many` performs for each request; compiled, if a C compiler was
available.
"""

try:
    from ringfence.client.requests._batch_ops import (
        decisions,
        find_lone,
        key_of_value,
        keys_of_values,
    )
except ImportError:
    from ringfence.client.requests.batch_ops_plain import (
        decisions,
        find_lone,
        key_of_value,
        keys_of_values,
    )

__all__ = ["decisions", "find_lone", "key_of_value", "keys_of_values"]
