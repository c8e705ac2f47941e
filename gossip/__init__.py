"""Who is in the cluster and what others have counted, decided from messages and the time alone.

`Membership` is SWIM with Lifeguard as a state machine; `seal` keeps strangers' datagrams out,
`clock` agrees on a time, `spread` chooses which counts other data centers should hear. Nothing
here waits, reads a clock or knows a socket.
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
from gossip.effects import Changed, Conflict, Effect, Exchange, Send, Stamps
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
    "Stamps",
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
