"""Events of the links to other members, which are logged and passed to other parts of the node."""

import logging
from collections.abc import Callable
from weakref import WeakKeyDictionary

from node.membership.peer_links import PeerLinks
from ringfence.peering.link import Link

__all__ = ["LinkEvents"]

logger = logging.getLogger("ringfence.node")


class LinkEvents:
    """Listener for the events of all links of one node."""

    def __init__(
        self,
        links: PeerLinks,
        report_unreachable: Callable[[str], None],
        on_slots_free: Callable[[list[int]], None],
    ) -> None:
        """`report_unreachable` is called with the name of a member whose link was lost."""
        self._links = links
        self._report_unreachable = report_unreachable
        self.on_slots_free = on_slots_free
        self._lost_links: WeakKeyDictionary[Link, type] = WeakKeyDictionary()
        """Links that were lost and are not ready again, with the kind of the reason."""

    def on_versions(self, link: Link, view: int, rules: int) -> None:
        """Ignore the member and rule versions of a peer: gossip updates members, and each node
        loads its own rules."""

    def on_reachable(self, link: Link, reachable: bool) -> None:
        """Log that a member became reachable or was lost; a lost member is probed immediately.

        A member has up to three links. What is known from another one is logged at level debug.
        """
        host, port = link.address
        if reachable:
            is_known = self._links.has_link_to(link.address, other_than=link)
            is_news = link in self._lost_links or not is_known
            for other in [each for each in self._lost_links if each.address == link.address]:
                del self._lost_links[other]
            level = logging.INFO if is_news else logging.DEBUG
            logger.log(level, "peer %s at %s:%d is within reach", link.name, host, port)
        else:
            reason, kind = link.refusal or "it does not answer", type(link.refusal)
            known = [(other.address, why) for other, why in self._lost_links.items()]
            level = logging.DEBUG if (link.address, kind) in known else logging.WARNING
            self._lost_links[link] = kind
            logger.log(level, "peer at %s:%d is lost: %s", host, port, reason)
            if link.name:
                self._report_unreachable(link.name)
