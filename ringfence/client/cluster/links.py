"""Links of a client to the nodes of its cluster, by address."""

from collections.abc import Callable, Collection, Iterator, Sequence
from random import Random
from typing import TypeVar

from msgspec.structs import replace

from ringfence.client.local_cache.local_cache import LocalCache
from ringfence.errors import RingfenceError
from ringfence.peering.link import Link, LinkListener, LinkSettings
from ringfence.peering.link.calls import call
from ringfence.transport.interface import Address, Transport
from ringfence.wire import Hello, MemberRow, Members, Message, Rules

__all__ = ["Links"]

_Reply = TypeVar("_Reply", Members, Rules)
_MOST_RETIRED = 256
"""Most retired links that are remembered."""
_MOST_ELSEWHERE = 3
"""Members of other data centers that a client asks when it reaches no node."""


class Links:
    """Links to all known nodes; it opens, finds and closes them."""

    def __init__(
        self,
        transport: Transport,
        seeds: Sequence[Address],
        hello: Hello,
        settings: LinkSettings,
        random: Random,
        listener: LinkListener,
        view: Callable[[], int],
        local_cache: LocalCache | None,
    ) -> None:
        """`view` returns the hash of the member list that this client uses."""
        self.seeds = tuple(seeds)
        self._transport = transport
        self._hello = hello
        self._settings = settings
        self._random = random
        self._listener = listener
        self._view = view
        self._local_cache = local_cache
        self._links: dict[Address, Link] = {}
        self._retired: dict[Address | str, Link] = {}
        """Retired links, by the name of the node, or by the address if the name is unknown. A new
        link to the same node continues with the session and the numbers of the retired one, so that
        the node recognizes this process."""

    def __iter__(self) -> Iterator[Link]:
        return iter(self._links.values())

    @property
    def ready(self) -> list[Link]:
        """Links to nodes that are connected and answer."""
        return [link for link in self if link.is_ready]

    @property
    def refusals(self) -> list[RingfenceError | None]:
        """Last connection error of each link; None for a link without an error."""
        return [link.refusal for link in self]

    def are_refused(self, kinds: tuple[type[RingfenceError], ...]) -> bool:
        """Return whether every link has an error of one of the given kinds; False without links."""
        links = self._links.values()
        return bool(links) and all(isinstance(link.refusal, kinds) for link in links)

    def open_seeds(self) -> None:
        """Connect to the nodes at all seed addresses."""
        for seed in self.seeds:
            self.link_to(seed).open()

    def open_some(self, rows: Sequence[MemberRow]) -> None:
        """Connect to a few of the given members, at random; more calls open no more links."""
        new = [row for row in rows if (row.host, row.port) not in self._links]
        count = min(len(new), _MOST_ELSEWHERE - (len(rows) - len(new)))
        for row in self._random.sample(new, max(0, count)):
            self.link_to((row.host, row.port)).open()

    def link_to(self, address: Address, name: str = "") -> Link:
        """Return the link to an address; create it if needed. `name` is the name of the node there,
        if it is known."""
        link = self._links.get(address)
        if link is None:
            session, first_seq = self._numbers_for(self._retired.pop(name or address, None))
            link = Link(
                self._transport,
                address,
                replace(self._hello, session=session),
                self._settings,
                self._listener,
                self._random,
                self._view,
                self._local_cache,
                first_seq=first_seq,
            )
            self._links[address] = link
        return link

    def _numbers_for(self, retired: Link | None) -> tuple[int, int]:
        """Return the session and the first number of a new link to the node of a retired one.

        Nodes identify requests by session and number, and each link counts its own. A retired link
        may still wait for answers, which the node would send to the new one.
        """
        if retired is None:
            return self._random.getrandbits(64), 1
        retired.close()
        return retired.session, retired.next_seq

    def link_of(self, row: MemberRow) -> Link:
        """Return a link on which the given member answers, or create one to the member's
        address."""
        for link in self:
            if link.name == row.name and link.is_ready:
                return link
        return self.link_to((row.host, row.port), row.name)

    async def ask_any(
        self, make: Callable[[int], Message], kind: type[_Reply], first: Link | None
    ) -> _Reply | None:
        """Send a request to one node after another, starting with `first`, until one replies."""
        for link in sorted(self, key=lambda link: link is not first):
            if link.is_ready:
                reply = await call(link, make, kind)
                if reply is not None:
                    return reply
        return None

    def retire_others(self, kept: Collection[Link]) -> None:
        """Close all links except the given ones, once their requests are answered."""
        for address, link in list(self._links.items()):
            if not any([link is each for each in kept]):
                del self._links[address]
                link.retire()
                self._retired[link.name or address] = link
                if len(self._retired) > _MOST_RETIRED:
                    del self._retired[next(iter(self._retired))]

    def close(self) -> None:
        """Close the links to all nodes."""
        for link in self:
            link.close()
        self._links.clear()
