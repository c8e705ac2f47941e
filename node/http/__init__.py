"""The operator's port of a node: metrics, members, ring, rules, keys, health, a live page.

It shares the node's loop, so everything that it does is small, cached or paced: whoever looks, or
floods it, must not be felt by those who check.
"""

from node.http.app import OperatorApp
from node.http.port import OperatorPort, open_port

__all__ = ["OperatorApp", "OperatorPort", "open_port"]
