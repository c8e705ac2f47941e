"""Link to one member: connection, send queue, frames in flight and time-outs."""

from ringfence.peering.link.connection import Prove
from ringfence.peering.link.errors import CertificateExpired, PeerLeaving
from ringfence.peering.link.link import Link, LinkListener
from ringfence.peering.link.settings import LinkSettings

__all__ = ["CertificateExpired", "Link", "LinkListener", "LinkSettings", "PeerLeaving", "Prove"]
