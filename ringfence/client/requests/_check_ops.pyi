from ringfence.client.requests.check_ops_plain import (
    LocalChecks,
    Matches,
    decision_of,
    decisions_of,
)

__all__ = ["LocalChecks", "Matches", "decision_of", "decisions_of"]
