"""The links of one node at core level: one for checks and one for counters to each member, made
when first needed, as `node.membership.peer_links` has them."""

from collections.abc import Callable, Mapping

from gossip import Record, Status
from hashring import NodeId
from ringfence.peering.link.settings import LinkSettings
from simulations.core_level.link import CoreLink, Home

__all__ = ["CorePeers"]

_FORWARD_TIMEOUT = 0.4
_BULK_TIMEOUT = 2.0
_LINKS = LinkSettings(answer_timeout=_FORWARD_TIMEOUT, slow_timeout=2 * _FORWARD_TIMEOUT)
_BULK = LinkSettings(answer_timeout=_BULK_TIMEOUT, slow_timeout=2 * _FORWARD_TIMEOUT)


class CorePeers:
    """All links of one node."""

    def __init__(
        self, home: Home, records: Callable[[], Mapping[str, Record]], view: Callable[[], int]
    ) -> None:
        self._home = home
        self._records = records
        self._view = view
        self._links: dict[tuple[str, bool], tuple[int, CoreLink]] = {}
        """With the generation of the member that each one leads to."""
        self._by_address: dict[str, CoreLink] = {}

    def link(self, name: NodeId) -> CoreLink | None:
        """The link to a member; None when nobody of that name can be asked."""
        return self._find(name, is_bulk=False)

    def bulk(self, name: NodeId) -> CoreLink | None:
        """A second, patient link to the member, for counters that move."""
        return self._find(name, is_bulk=True)

    def at(self, name: str) -> CoreLink:
        """The link to whoever listens where this member would."""
        link = self.link(NodeId(name)) or self._by_address.get(name)
        if link is None:
            link = self._by_address[name] = CoreLink(self._home, name, _LINKS, self._view)
        return link

    def drop(self, record: Record) -> list[Callable[[], None]]:
        """Forget a member that is gone; returns what ends its links."""
        found = [self._links.pop((record.name, is_bulk), None) for is_bulk in (False, True)]
        links = [known[1] for known in found if known is not None]
        is_dead = record.status is Status.DEAD
        return [link.close if is_dead else link.retire for link in links]

    def _find(self, name: NodeId, *, is_bulk: bool) -> CoreLink | None:
        record = self._records().get(name)
        if record is None or record.is_gone or name == self._home.name:
            return None
        known = self._links.get((name, is_bulk))
        if known is not None and known[0] == record.generation:
            return known[1]
        link = CoreLink(self._home, name, _BULK if is_bulk else _LINKS, self._view)
        self._links[name, is_bulk] = record.generation, link
        return link
