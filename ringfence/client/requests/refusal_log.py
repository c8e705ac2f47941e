"""Log warnings about refunds and releases of slots that a node refused."""

import logging
from collections.abc import Callable, Iterable

from ringfence.rules import Rule
from ringfence.rules.descriptor_tree import place

__all__ = ["RefusalLog"]

logger = logging.getLogger("ringfence.client")

_LOG_INTERVAL = 300.0


class RefusalLog:
    """Log of refused refunds of one limiter. It names a rule at most once in five minutes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns the current time in seconds."""
        self._clock = clock
        self._silent_until: dict[str, float] = {}
        """By name of a rule."""

    def warn(self, what: str, rules: Iterable[Rule | None]) -> None:
        """Log that a node did not give back `what`, units or slots, of some rules; None stands for
        an unknown rule."""
        now, silent_until = self._clock(), self._silent_until
        found = dict.fromkeys([_name_of(rule) for rule in rules])
        names = [name for name in found if now >= silent_until.get(name, now)]
        if names:
            silent_until.update(dict.fromkeys(names, now + _LOG_INTERVAL))
            logger.warning(
                "Ringfence: refund refused: %s of %s stay in use until their period ends. The node "
                "knows no charge of this token for them: the node that counted them has left, "
                "restarted or failed, or they were given back before. Use a token with the scopes "
                "check,refund: ringfence keys add-token keys NAME:check,refund",
                *(what, ", ".join(names)),
            )


def _name_of(rule: Rule | None) -> str:
    if rule is None or not rule.domain:
        return "a limit in no rule"
    return f"rule {rule.name or place(rule.domain, rule.path)}"
