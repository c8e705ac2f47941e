"""Events of the links to other members, which are logged and passed to other parts of the node."""

import logging
from collections.abc import Callable
from weakref import WeakKeyDictionary

from node.membership.peer_links import PeerLinks
from ringfence.errors import PeerUnavailable
from ringfence.peering.link import Link, PeerLeaving
from ringfence.transport.addresses import format_address

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
        """Log that a member became reachable, leaves or was lost; the last two are probed
        immediately.

        A member has up to three links. What is known from another one is logged at level debug.
        """
        where = format_address(link.address)
        if reachable:
            is_known = self._links.has_link_to(link.address, other_than=link)
            is_news = link in self._lost_links or not is_known
            for other in [each for each in self._lost_links if each.address == link.address]:
                del self._lost_links[other]
            level = logging.INFO if is_news else logging.DEBUG
            logger.log(level, "peer %s at %s is within reach", link.name, where)
        else:
            self._log_loss(link, where)
            if link.name:
                self._report_unreachable(link.name)

    def _log_loss(self, link: Link, where: str) -> None:
        """Log why a link was lost: at level INFO after a graceful leave, otherwise as a warning."""
        is_leaving = isinstance(link.refusal, PeerLeaving)
        # After a leave, attempts to connect to the member fail. They belong to the same event.
        kind = PeerUnavailable if is_leaving else type(link.refusal)
        known = [(other.address, why) for other, why in self._lost_links.items()]
        level = logging.INFO if is_leaving else logging.WARNING
        if (link.address, kind) in known:
            level = logging.DEBUG
        self._lost_links[link] = kind
        peer = f"peer {link.name}" if link.name else "peer"
        if is_leaving:
            logger.log(level, "%s at %s is leaving", peer, where)
            return
        reason = str(link.refusal or "it does not answer").removeprefix(f"{where}: ")
        event = "is lost" if link.name else "cannot be reached"
        logger.log(level, "%s at %s %s: %s", peer, where, event, reason)
