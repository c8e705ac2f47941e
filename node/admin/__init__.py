"""Admin port of a node: metrics, members, ring, rules, keys, health checks and a dashboard.

It shares the event loop of the node, so its work is small, cached or throttled. Many viewers or a
flood of requests must not delay checks.
"""

from node.admin.app import AdminApp
from node.admin.port import AdminPort, open_port

__all__ = ["AdminApp", "AdminPort", "open_port"]
