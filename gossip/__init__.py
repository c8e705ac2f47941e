"""Cluster membership, and selection of counts to send between data centers, without I/O.

`Membership` implements SWIM with Lifeguard as a state machine. `datagrams.seal` encrypts and
authenticates datagrams. `cluster_clock` computes a common time. `cross_dc` selects the counts that
other data centers need. Nothing here waits, reads a clock or uses a socket.
"""

from gossip.datagrams.codec import (
    MAX_MESSAGE,
    BadDatagram,
    decode,
    encode,
    pack_records,
    unpack_records,
)
from gossip.datagrams.messages import Ack, Gossip, Message, Nack, Ping, PingReq
from gossip.effects import Changed, Conflict, Effect, Exchange, ProbeClock, Send
from gossip.members.record import Address, Record, Status
from gossip.membership import Membership
from gossip.settings import ProbeSettings, Settings

__all__ = [
    "Membership",
    "Record",
    "Status",
    "Address",
    "Settings",
    "ProbeSettings",
    "ProbeClock",
    "Effect",
    "Send",
    "Exchange",
    "Changed",
    "Conflict",
    "Message",
    "Ping",
    "Ack",
    "PingReq",
    "Nack",
    "Gossip",
    "encode",
    "decode",
    "pack_records",
    "unpack_records",
    "MAX_MESSAGE",
    "BadDatagram",
]
