"""Many QUIC connections behind one UDP port, without the port: datagrams in, datagrams out.

Decides which connection a datagram is for, how many there may be, when each one's timers run and
what a newcomer must show. Sockets, clocks and waiting belong to the shells; what one connection
does belongs to `pipe`.
"""

import hmac
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from ipaddress import ip_address
from itertools import count
from math import inf
from typing import TypeAlias

from ringfence.transport.close_reason import CloseReason, TransportCode, text_of
from ringfence.transport.interface import Accept, Address, Connection, Handler, OnSealed
from ringfence.transport.quic.admission import CID_LENGTH, Acceptor, Admit, Drop, Reply, header_of
from ringfence.transport.quic.aioquic_connection import AioquicConnection, Datagrams
from ringfence.transport.quic.connection import QuicConnection, State
from ringfence.transport.settings import Settings
from ringfence.transport.tls.certificates import (
    ClientTls,
    ServerTls,
    client_configuration,
    server_configuration,
)
from ringfence.wire.errors import ErrorCode

__all__ = ["Endpoint", "OnBug", "numeric"]

OnBug: TypeAlias = Callable[[Exception], None]
"""Told of exceptions that should not have been raised; must not raise itself."""


class Endpoint:
    """Both sides of QUIC on one port. `now` is in seconds on any clock that never goes back.

    After each call, send what `datagrams_to_send` returns and call `tick` by `next_deadline`.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        on_bug: OnBug,
        client: ClientTls | None = None,
        server: ServerTls | None = None,
        accept: Accept | None = None,
        reset_secret: bytes = b"",
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """`reset_secret` is this node's alone, and the same after a restart; see `Udp`."""
        self._settings = settings
        self._on_bug = on_bug
        self.on_sealed: OnSealed | None = None
        """Told of datagrams that are not QUIC; without it they are refused."""
        self._accept = accept
        self.change_tls(client or ClientTls(), server)
        secret = reset_secret or (entropy(32) if server is None else server.key_pem)
        self._reset_key = hmac.digest(secret, b"ringfence stateless reset", "sha256")
        self._acceptor = Acceptor(entropy, self._reset_key)
        self.refusals: Counter[str] = Counter()
        """How often something was not accepted, by cause."""
        self._failed = 0.0
        self._failed_at = 0.0
        self._replies: Datagrams = []
        self._routes: dict[bytes, QuicConnection] = {}
        self._resets: dict[bytes, QuicConnection] = {}
        """Connections of our own by what their peer, restarted, would end them with."""
        self._pipes: dict[QuicConnection, None] = {}
        self._half_open: dict[QuicConnection, None] = {}
        """Incoming handshakes, the oldest first."""
        self._established: dict[QuicConnection, None] = {}
        """Incoming connections that are open."""
        self._draining: dict[QuicConnection, None] = {}
        """Closed incoming ones, whose peer may still knock with the same connection id."""
        self._dirty: dict[QuicConnection, None] = {}
        self._to_dispose: list[AioquicConnection] = []
        """Of forgotten connections, to be taken apart when none of their methods can be running."""
        self._timers: list[tuple[float, int, QuicConnection]] = []
        self._order = count()

    def change_tls(self, client: ClientTls, server: ServerTls | None) -> None:
        """Take certificates for the connections that begin from now on."""
        every = (self._settings, self._settings.within_host())
        self._tls = client
        self._client = [client_configuration(client, each) for each in every]
        self._server = (
            None
            if server is None or self._accept is None
            else [server_configuration(server, each) for each in every]
        )

    @property
    def half_open(self) -> int:
        """Incoming connections whose handshake is not done."""
        return len(self._half_open)

    @property
    def connections(self) -> int:
        """Connections that are open or becoming so, in both directions."""
        return len(self._pipes) - len(self._draining)

    def receive_datagram(self, data: bytes, addr: Address, now: float) -> None:
        """Take one UDP payload, whatever it is; never raises for what it holds."""
        self._dispose()
        if not data:
            self.refusals["empty"] += 1
        elif not data[0] & 0x40:
            self._take_sealed(data, addr)
        elif data[0] & 0x80:
            self._take_long(data, addr, now)
        else:
            pipe = self._routes.get(data[1 : 1 + CID_LENGTH])
            if pipe is None:
                self._take_stray(data, addr)
            else:
                self._deliver(pipe, data, addr, now)

    def is_handshake(self, data: bytes) -> bool:
        """Whether a datagram belongs to no open connection: to a handshake, or to nothing."""
        if not data or not data[0] & 0x40:
            return False
        if data[0] & 0x80:
            return True
        pipe = self._routes.get(data[1 : 1 + CID_LENGTH])
        return pipe is not None and pipe.state is State.CONNECTING

    def connect(self, addr: Address, handler: Handler, now: float) -> Connection:
        """Begin a connection to a numeric address; `handler` hears of it, never before return."""
        pipe = self.prepare(addr, handler, now)
        self.begin(pipe, [addr], now)
        return pipe

    def prepare(
        self, addr: Address, handler: Handler, now: float, node: str = ""
    ) -> QuicConnection:
        """Make a connection to a name that the caller resolves: `begin` or `fail` must follow.

        `node` is the name of the node that must answer, when it is known.
        """
        pipe = QuicConnection(self, addr, handler, self._tls.name_of(node))
        pipe.keepalive = self._settings.keepalive
        pipe.window = self._settings.window
        pipe.connect_ends = now + self._settings.handshake_timeout
        pipe.attempt_ends = pipe.connect_ends
        self._pipes[pipe] = None
        self.wake(pipe)
        return pipe

    def begin(self, pipe: QuicConnection, candidates: Sequence[Address], now: float) -> None:
        """Start the handshake with the first numeric address; the others are for later."""
        if pipe.state is State.RESOLVING:
            pipe.candidates = tuple(candidates)
            self._attempt(pipe, now)

    def fail(self, pipe: QuicConnection, closing: CloseReason) -> None:
        """Give up a connection that cannot even begin."""
        pipe.end(closing, tell=False)

    def unreachable(self, addr: Address, quoted: bytes, now: float) -> None:
        """Take the network's word that nobody listens at `addr`.

        `quoted` is the front of the datagram that came back. It must be one of ours, so that nobody
        off the path can end a connection; when in doubt nothing happens, and timeouts decide.
        """
        for pipe in [p for p in self._pipes if p.path == addr and p.sent(quoted)]:
            if pipe.state is State.CONNECTING and pipe.candidates:
                self._attempt(pipe, now)
            else:
                reason = f"nobody listens at {text_of(addr)}"
                pipe.end(CloseReason(TransportCode.UNREACHABLE, reason), tell=False)

    def tick(self, now: float) -> None:
        """Do what is due; harmless when early."""
        self._dispose()
        timers = self._timers
        while timers and timers[0][0] <= now:
            due, _, pipe = heappop(timers)
            if due != pipe.planned:
                continue  # A nearer deadline took its place.
            pipe.planned = inf
            if pipe in self._dirty and pipe.state is State.CLOSED:
                continue  # Its goodbye has not left; `datagrams_to_send` will plan what follows.
            deadline = pipe.deadline()
            if deadline > now:
                self._plan_for(pipe, deadline)  # What was due has been done on the way.
            elif now >= pipe.attempt_ends:
                self._give_up_attempt(pipe, now)
            else:
                pipe.tick(now)

    def next_deadline(self) -> float | None:
        """When `tick` has something to do, or a little before."""
        return self._timers[0][0] if self._timers else None

    def datagrams_to_send(self, now: float) -> Datagrams:
        """Take what is to leave now, from the connections that something has happened to."""
        datagrams, self._replies = self._replies, []
        while self._dirty:
            pipe = next(iter(self._dirty))
            del self._dirty[pipe]
            datagrams += pipe.transmit(now)
            self.plan(pipe)
        return datagrams

    def close_all(self, now: float, code: int = ErrorCode.DRAINING, reason: str = "") -> None:
        """Close every connection, as its owner would; `datagrams_to_send` has the goodbyes."""
        for pipe in list(self._pipes):
            pipe.close(code, reason or "shutting down")

    # What pipes tell.

    def wake(self, pipe: QuicConnection) -> None:
        """See `Owner`."""
        self._dirty[pipe] = None

    def plan(self, pipe: QuicConnection) -> None:
        """See `Owner`. `tick` will look at `pipe` in time."""
        deadline = pipe.deadline()
        if pipe.state is State.CLOSED and (deadline == inf or not pipe.is_incoming):
            self._forget(pipe)
        else:
            self._plan_for(pipe, deadline)

    def route(self, cid: bytes, pipe: QuicConnection) -> None:
        """See `Owner`."""
        self._routes[cid] = pipe
        pipe.cids.add(cid)

    def unroute(self, cid: bytes) -> None:
        """See `Owner`."""
        pipe = self._routes.pop(cid, None)
        if pipe is not None:
            pipe.cids.discard(cid)

    def opened(self, pipe: QuicConnection) -> Handler | None:
        """See `Owner`."""
        if not pipe.is_incoming:
            if pipe.quic is not None and pipe.quic.peer_reset_token:
                self._resets[pipe.quic.peer_reset_token] = pipe
            return None
        if self._accept is None:
            return None
        self._half_open.pop(pipe, None)
        self._established[pipe] = None
        try:
            return self._accept(pipe)
        except Exception as error:  # noqa: BLE001 - as for any handler.
            self.refused("handler_failed")
            self.bug(error)
            return None

    def ended(self, pipe: QuicConnection) -> None:
        """See `Owner`."""
        self._established.pop(pipe, None)
        if pipe in self._half_open:
            del self._half_open[pipe]
            self._failed += 1.0
        if pipe.is_incoming and pipe in self._pipes:
            self._draining[pipe] = None
            if len(self._draining) > self._settings.max_half_open:
                self._forget(next(iter(self._draining)))
        self.wake(pipe)

    def refused(self, cause: str) -> None:
        """See `Owner`."""
        self.refusals[cause] += 1

    def bug(self, error: Exception) -> None:
        """See `Owner`."""
        self._on_bug(error)

    # Incoming.

    def _take_stray(self, data: bytes, addr: Address) -> None:
        pipe = self._resets.get(data[-16:])
        if pipe is not None and pipe.path == addr:
            reason = f"{text_of(addr)} has restarted and no longer knows this connection"
            return pipe.end(CloseReason(TransportCode.UNREACHABLE, reason), tell=False)
        self.refusals["unknown_connection"] += 1
        answer = None if self._server is None else self._acceptor.reset(data)
        if answer is not None:
            self._replies.append((answer, addr))
        return None

    def _take_sealed(self, data: bytes, addr: Address) -> None:
        if self.on_sealed is None:
            self.refusals["not_quic"] += 1
            return
        try:
            self.on_sealed(data, addr)
        except Exception as error:  # noqa: BLE001 - as for any handler.
            self.bug(error)

    def _take_long(self, data: bytes, addr: Address, now: float) -> None:
        try:
            header = header_of(data)
        except ValueError:
            self.refusals["malformed_header"] += 1
            return None
        pipe = self._routes.get(header.destination_cid)
        if pipe is not None:
            return self._deliver(pipe, data, addr, now)
        if self._server is None:
            self.refusals["unknown_connection"] += 1
            return None
        pressure = len(self._half_open) + self._handshake_pressure(now)
        verdict = self._acceptor.classify(
            header,
            len(data),
            addr,
            now,
            require_retry=pressure >= self._settings.retry_above,
            is_full=len(self._established) >= self._settings.max_connections,
        )
        match verdict:
            case Admit(original_cid, retry_cid):
                self._admit(original_cid, retry_cid, header.destination_cid, addr, now)
                self._deliver(self._routes[header.destination_cid], data, addr, now)
            case Reply(datagram, cause):
                self.refusals[cause] += 1
                self._replies.append((datagram, addr))
            case Drop(cause):
                self.refusals[cause] += 1
        return None

    def _handshake_pressure(self, now: float) -> float:
        """Count handshakes that failed lately: they cost us time, though no memory any more.

        They weigh as if they were still half open, for as long as an unfinished one may be.
        """
        limit = self._settings.retry_above
        forgiven = (now - self._failed_at) * limit / self._settings.handshake_timeout
        self._failed = min(max(0.0, self._failed - forgiven), 2.0 * limit)
        self._failed_at = now
        return self._failed

    def _admit(
        self, original: bytes, retry: bytes | None, cid: bytes, addr: Address, now: float
    ) -> None:
        assert self._server is not None
        if len(self._half_open) >= self._settings.max_half_open:
            self.refusals["half_open_full"] += 1
            self._drop(next(iter(self._half_open)), "another handshake took its place")
        pipe = QuicConnection(self, addr, None, None)
        pipe.window = self._settings.window
        pipe.distrust(self._settings.stranger_message)
        pipe.attempt_ends = now + self._settings.handshake_timeout
        self._pipes[pipe] = None
        self._half_open[pipe] = None
        window = self._settings.stranger_window
        quic = AioquicConnection(
            self._server[is_loopback(addr)],
            window=window,
            original_cid=original,
            retry_cid=retry,
            reset_key=self._reset_key,
        )
        pipe.start(quic, addr)
        self.route(cid, pipe)

    def _deliver(self, pipe: QuicConnection, data: bytes, addr: Address, now: float) -> None:
        if pipe.quic is None:
            return
        pipe.receive(data, addr, now)
        if pipe.is_incoming and pipe.quic is not None and not pipe.quic.is_begun:
            self.refusals["bad_initial"] += 1
            self._drop(pipe, "not an Initial packet")

    def _plan_for(self, pipe: QuicConnection, deadline: float) -> None:
        if deadline < pipe.planned:
            pipe.planned = deadline
            heappush(self._timers, (deadline, next(self._order), pipe))
            if len(self._timers) > 64 + 2 * len(self._pipes):
                self._sweep()

    # Outgoing.

    def _attempt(self, pipe: QuicConnection, now: float) -> None:
        """Try the next candidate, leaving an equal share of the time to each one after it."""
        path, *later = pipe.candidates
        pipe.candidates = later
        pipe.attempt_ends = now + max(0.0, pipe.connect_ends - now) / (1 + len(later))
        usual = self._client[is_loopback(path)]
        quic = AioquicConnection(
            replace(usual, server_name=pipe.server_name), window=self._settings.window
        )
        quic.connect(path, now)
        pipe.start(quic, path)

    def _give_up_attempt(self, pipe: QuicConnection, now: float) -> None:
        if pipe.is_incoming:
            self.refusals["handshake_timeout"] += 1
            self._drop(pipe, "handshake timed out")
        elif pipe.candidates:
            self._attempt(pipe, now)
        else:
            reason = f"handshake timed out (no answer from {text_of(pipe.path)})"
            pipe.end(CloseReason(TransportCode.HANDSHAKE_TIMEOUT, reason), tell=True)

    # Bookkeeping.

    def _drop(self, pipe: QuicConnection, reason: str) -> None:
        pipe.end(CloseReason(TransportCode.HANDSHAKE_TIMEOUT, reason), tell=False)
        self._forget(pipe)

    def _forget(self, pipe: QuicConnection) -> None:
        for cid in list(pipe.cids):
            self.unroute(cid)
        self._pipes.pop(pipe, None)
        self._half_open.pop(pipe, None)
        self._established.pop(pipe, None)
        self._draining.pop(pipe, None)
        self._dirty.pop(pipe, None)
        if pipe.quic is not None:
            self._resets.pop(pipe.quic.peer_reset_token, None)
            self._to_dispose.append(pipe.quic)
        pipe.quic = None

    def _dispose(self) -> None:
        while self._to_dispose:
            self._to_dispose.pop().dismantle()

    def _sweep(self) -> None:
        """Rebuild the heap without what nearer deadlines have left in it."""
        self._timers = [t for t in self._timers if t[0] == t[2].planned and t[2] in self._pipes]
        heapify(self._timers)


def is_loopback(addr: Address) -> bool:
    """Whether a numeric address is this very host's own, so that no network is in between."""
    return addr[0].startswith("127.") or addr[0] == "::1"


def numeric(host: str) -> str | None:
    """Write an IP address as sockets do, or return None for a name."""
    try:
        return str(ip_address(host))
    except ValueError:
        return None
