"""Calls of a membership core and its effects, for tests of one member."""

from hypothesis import strategies as st

from gossip import (
    Ack,
    Changed,
    Gossip,
    Ping,
    Record,
    Send,
    Settings,
    Status,
    decode,
    encode,
)

NS = 1_000_000_000
HOME = ("host-b", 7600)
LAN = Settings.lan()
SEEDS = (("seed-1", 1), ("seed-2", 2))

others = st.builds(
    Record,
    name=st.sampled_from(["a", "b", "c", "d"]),
    host=st.just("h"),
    port=st.just(1),
    datacenter=st.just("dc1"),
    zone=st.just(""),
    weight=st.just(1.0),
    generation=st.integers(1, 2),
    incarnation=st.integers(0, 2),
    status=st.sampled_from(Status),
    accuser=st.sampled_from(["", "b", "c"]),
)


def sent(effects, kind):
    return [
        effect.message
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, kind)
    ]


def is_sent_to(effect, record):
    return isinstance(effect, Send) and effect.to == record.address


def first_ping(member):
    """Tick until the member sends a ping; return the time and the ping."""
    while True:
        began = member.next_deadline()
        pings = sent(member.tick(began), Ping)
        if pings:
            return began, pings[0]


def changes(effects):
    return [effect.after for effect in effects if isinstance(effect, Changed)]


def run(core, seconds):
    """Tick whenever something is due."""
    effects = []
    while core.next_deadline() <= seconds * NS:
        effects += core.tick(core.next_deadline())
    return effects


def answer(member, ping, at, *, sender=None, generation=1, stamp=0, delay=0):
    """Receive the answer to a ping at the time `at`."""
    ack = Ack(sender or ping.target, generation, ping.seq, member.digest, stamp, delay)
    return member.receive(decode(encode(ack)), HOME, at)


def run_answered(member, until, *, silent=()):
    """Run a member whose pings are answered at once; return what it sends besides pings."""
    found = []
    while (now := member.next_deadline()) <= until:
        effects = member.tick(now)
        for ping in sent(effects, Ping):
            if ping.target not in silent:
                answer(member, ping, now)
        found += [(each.to, each.message) for each in effects if isinstance(each, Send)]
    return [(to, message) for to, message in found if not isinstance(message, Ping)]


def deliver(core, *records, sender="b", source=HOME, now=0):
    return core.receive(Gossip(sender, 1, records), source, now)
