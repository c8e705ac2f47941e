"""Which limits a request meets: rules as values, matching, keys, and limits as people write them.

Light: what clients need. Reading YAML is `ringfence.rules.load`, the table of `ringfence rules
check` is `ringfence.rules.report`; both are for nodes and tools and imported by their own names.
"""

from ringfence.rules.addresses import group_address
from ringfence.rules.keys import adhoc_rule, encode_key, rule_id
from ringfence.rules.model import Descriptor, Match, OnFailure, Rule
from ringfence.rules.ruleset import RuleSet
from ringfence.rules.serialize import Plain
from ringfence.rules.strings import format_limit, parse_limit
from ringfence.rules.tree import Domain, Open

__all__ = [
    "Descriptor",
    "Domain",
    "Match",
    "OnFailure",
    "Open",
    "Plain",
    "Rule",
    "RuleSet",
    "adhoc_rule",
    "encode_key",
    "format_limit",
    "group_address",
    "parse_limit",
    "rule_id",
]
