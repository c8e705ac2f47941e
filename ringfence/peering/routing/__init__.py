"""Routing of checks: owner first, then the standby, then the rule's `on_failure`."""

from ringfence.peering.routing.router import Fallback, Router
from ringfence.peering.routing.routes import Routes

__all__ = ["Fallback", "Router", "Routes"]
