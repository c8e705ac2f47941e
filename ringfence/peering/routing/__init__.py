"""Routing of checks: first to the owner, then to the standby, then to the rule's `on_failure`."""

from ringfence.peering.routing.router import Router
from ringfence.peering.routing.routes import Routes

__all__ = ["Router", "Routes"]
