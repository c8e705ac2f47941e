"""Operations that a client performs for each check; compiled, if a C compiler was available."""

try:
    from ringfence.client.requests._check_ops import (
        LocalChecks,
        Matches,
        decision_of,
        decisions_of,
    )
except ImportError:
    from ringfence.client.requests.check_ops_plain import (
        LocalChecks,
        Matches,
        decision_of,
        decisions_of,
    )

__all__ = ["LocalChecks", "Matches", "decision_of", "decisions_of"]
