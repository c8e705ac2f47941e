"""Rules: the limits that apply to a request, the keys of their counters, and limits as text.

This package contains what clients need. Nodes and tools also import `ringfence.rules.loading` (YAML
files) and `ringfence.rules.report` (the table that `ringfence rules check` prints).
"""

from ringfence.rules.addresses import group_address
from ringfence.rules.descriptor_tree import Domain, Open
from ringfence.rules.keys import adhoc_rule, encode_key, rule_id
from ringfence.rules.limit_strings import format_limit, parse_limit
from ringfence.rules.model import Descriptor, Match, OnFailure, Rule
from ringfence.rules.ruleset import RuleSet
from ringfence.rules.serialize import Plain

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
