"""Counters of a node's shards, and the parts that transfer, replicate and exchange them."""

from msgspec import Struct

from node.context.node_context import NodeContext
from node.cross_dc.counts import CrossDcCounts
from node.cross_dc.global_keys import GlobalKeys
from node.membership.peer_links import PeerLinks
from node.requests.deduplication import DecidedChecks
from node.requests.denial_subscriptions import DenialSubscriptions
from node.requests.leases.lease_grants import Lender
from node.requests.leases.lease_returns import LeaseReturns
from node.requests.sessions.caller import Caller
from node.requests.sessions.client_notices import ClientNotices
from node.shards.changed_keys import ChangedKeys
from node.shards.ownership.ownership import ShardOwnership
from node.shards.ownership.shard_states import OnTransition
from node.shards.replication import Replication
from node.shards.shard_steps import ShardSteps
from node.shards.transfers.handoff import Handoff
from node.shards.transfers.shard_sender import ShardSender
from ringfence.limiter import Engine
from ringfence.peering.engine_choice import first_slot, new_engine

__all__ = ["ShardCounters", "build_shard_counters"]


class ShardCounters(Struct, frozen=True):
    """Counters of one node, and the parts of the node that work on them."""

    engine: Engine
    lender: Lender[Caller]
    lease_returns: LeaseReturns
    ownership: ShardOwnership
    handoff: Handoff
    replication: Replication
    global_keys: GlobalKeys
    cross_dc: CrossDcCounts


def build_shard_counters(
    node: NodeContext,
    links: PeerLinks,
    notices: ClientNotices,
    decided_checks: DecidedChecks,
    subscriptions: DenialSubscriptions[Caller],
    *,
    first_id: int,
    least_parts: int,
    on_transition: OnTransition | None = None,
) -> ShardCounters:
    """Create the counters of a node that has no shards yet.

    Leases and transfers are numbered from `first_id`. A shard with at least one counter is
    transferred in at least `least_parts` parts. `on_transition` observes the states of the shards.
    """
    settings, counters, now = node.settings, node.counters, node.clock.now
    # Slot ids must not repeat across restarts: a late release would free another slot.
    engine = new_engine(
        max_keys=settings.max_keys,
        max_bytes=settings.max_bytes or None,
        first_slot_id=first_slot(node.name, first_id),
        secret=node.random.randbytes(16),
        keeps_keys=True,
    )
    changed = ChangedKeys()
    lender: Lender[Caller] = Lender(
        engine,
        node.rules.rule,
        notices.recall_leases,
        first_lease=first_id,
        on_freed=subscriptions.end_denials,
        on_changed=changed.add,
        on_settled=lambda session, key, units: session.spent(key, units),
        on_returned=lambda session, key, units: session.returned(key, units),
        process_of=lambda session: session.process,
        uptime=node.running.uptime,
    )
    global_keys = GlobalKeys(engine, now, node.running.uptime)
    ownership = ShardOwnership(
        *(node.name, engine, counters, node.rules.period_of),
        *(global_keys.on_arrived, global_keys.on_started),
        max_keys=settings.max_keys,
        max_bytes=settings.max_bytes or None,
        decided_checks=decided_checks,
        changed=changed,
        lender=lender,
        on_transition=on_transition,
        first_id=first_id,
        steps=ShardSteps(node.running.stopwatch),
    )
    lender.on_counted = ownership.log_units
    sender = ShardSender(
        ownership, engine, counters, first_transfer=first_id, least_parts=least_parts, lender=lender
    )
    shared = node.name, ownership, sender
    handoff = Handoff(
        *(*shared, counters, links.bulk, links.connect_joining, now, node.containment)
    )
    replication = Replication(
        *(*shared, engine, counters, links.bulk, now, node.containment, settings.max_keys)
    )
    cross_dc = CrossDcCounts(
        *(settings.datacenter, engine, ownership, counters, links.link, global_keys, now),
        *(node.running.uptime, node.random, node.containment),
    )
    cross_dc.set_rules(node.rules.current)
    leases = lender, LeaseReturns(lender, now)
    return ShardCounters(engine, *leases, ownership, handoff, replication, global_keys, cross_dc)
