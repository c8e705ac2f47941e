"""The operator's port of a node: metrics, members, ring, rules, keys, health, a live page.

It shares the node's loop, so everything that it does is small, cached or paced: whoever looks, or
floods it, must not be felt by those who check.
"""

from node.admin.app import AdminApp
from node.admin.port import AdminPort, open_port

__all__ = ["AdminApp", "AdminPort", "open_port"]
