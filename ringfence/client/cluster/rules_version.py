"""Rules of the cluster as a client knows them, and whether a newer version exists."""

import logging

from ringfence.errors import RemoteProtocolError
from ringfence.rules import OnFailure, Rule, RuleSet
from ringfence.wire import Rules

__all__ = ["ClusterRules"]

logger = logging.getLogger("ringfence.client")


class ClusterRules:
    """Rules that a client uses, with the version numbers that nodes have sent and announced."""

    def __init__(self, rules: RuleSet | None) -> None:
        """`rules`, when given, replace the cluster's rules for this client."""
        self.rules = RuleSet() if rules is None else rules
        self.is_fixed = self.is_known = rules is not None
        """`is_known`: whether the rules were given, or a node has sent rules that are valid."""
        self.received_version = -1
        """Newest version that a node has sent, valid or not."""
        self._announced_version = 0
        """Newest version that an answer has named."""

    @property
    def is_behind(self) -> bool:
        """Whether a node has announced newer rules than those that this client has received."""
        return not self.is_fixed and self.received_version < self._announced_version

    @property
    def is_missing(self) -> bool:
        """Whether no node has sent rules yet."""
        return not self.is_fixed and self.received_version < 0

    def announce(self, version: int) -> bool:
        """Record the rules version in a node's answer; return whether newer rules than the
        received ones exist."""
        self._announced_version = max(self._announced_version, version)
        return self.is_behind

    def adopt(self, reply: Rules) -> bool:
        """Use the rules that a node sent if they are newer and valid; return whether they are
        used."""
        if reply.version <= self.received_version:
            # This node has not reloaded yet. A node with newer rules will announce them again.
            self._announced_version = self.received_version
            return False
        self.received_version = reply.version
        try:
            self.rules = RuleSet.from_plain(reply.plain)
        except RemoteProtocolError as error:
            logger.warning("rules rejected: version=%d, error=%s", reply.version, error)
            return False
        self.is_known = True
        logger.info("rules changed: version=%d, rules=%d", reply.version, len(self.rules.rules()))
        return True

    def override_policy(self, rule_id: int) -> OnFailure | None:
        """Return the failure policy of a limit in a descriptor, see `RuleSet.override_policy`."""
        return self.rules.override_policy(rule_id)

    def rule_of(self, rule_id: int) -> Rule | None:
        """Return the rule with the given id; None if the client's rules contain none."""
        return self.rules.by_id(rule_id)
