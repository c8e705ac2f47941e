"""Mutants (planted bugs) in shard ownership: replicas, transfers, and decisions in place of an
unreachable owner."""

from simulations.mutants.value import Edit, Mutant

__all__ = ["MOVES"]

MOVES = (
    Mutant(
        "dirty-key-lost",
        "the key of a frame with one check is not marked for replication",
        (
            Edit(
                "node.shards.ownership.ownership:ShardOwnership.record_decided",
                "if batch.op is Op.CHECK and any(codes) and max(codes) > _LAST_CHARGED:",
                "if len(keys) == 1:\n    keys = []\nelif max(codes) > _LAST_CHARGED:",
            ),
        ),
        ("crash", "crash-for-good"),
    ),
    Mutant(
        "copy-never-sent",
        "nothing is replicated to the standby",
        (
            Edit(
                "node.shards.replication:Replication.send_changes",
                "left = len(self._changed.keys)",
                "left = 0",
            ),
        ),
        ("crash", "crash-for-good"),
    ),
    Mutant(
        "copy-confirmed-unkept",
        "a standby acknowledges a replica and does not store it",
        (
            Edit(
                "node.shards.ownership.ownership:ShardOwnership.keep_replica",
                "self.replicas.keep(sender, counts, now, origins)",
                "pass",
            ),
        ),
        ("crash", "crash-for-good"),
    ),
    Mutant(
        "first-copy-kept",
        "a standby keeps the first replica of a key and ignores newer ones",
        (
            Edit(
                "node.shards.replicas:Replicas.keep",
                "numbers = [self._limits.number_of(limit) for limit in counts.limits]",
                "numbers = [self._limits.number_of(limit) for limit in counts.limits]\n"
                "from ringfence.limiter.packed.packed_snapshot import pack_rows\n"
                "known = {key for rows in self._shards if rows for key, _ in rows.items()}\n"
                "new = [row for row in rows_in(counts.rows) if row[0] not in known]\n"
                "counts = PackedSnapshot(pack_rows(new), len(new), counts.limits, [])",
            ),
        ),
        ("crash", "crash-for-good"),
    ),
    Mutant(
        "earlier-replica-unasked",
        "a node that restarted alone does not request its replicas from before the restart",
        (
            Edit(
                "node.shards.transfers.shard_search:ShardSearch._start_or_take",
                "ownership.unasked.add(unknown, sources.by_shard)",
                "pass",
            ),
        ),
        ("restart-alone",),
    ),
    Mutant(
        "new-standby-unfilled",
        "a new standby receives changes, but not the existing counters",
        (
            Edit(
                "node.shards.replication:Replication._mark_for_new_standbys",
                "for some in self._engine.key_slices(_SLICE) if changed or second else ():",
                "for some in ():",
            ),
        ),
        ("two-crashes",),
    ),
    Mutant(
        "restarted-standby-unfilled",
        "a standby that restarts before its failure is detected gets no replicas of unchanged keys",
        (
            Edit(
                "node.shards.replication:Replication.on_member_restarted",
                "self._restarted_members[name] = None",
                "pass",
            ),
        ),
        ("standby-restart",),
    ),
    Mutant(
        "standby-is-owner",
        "the ring names the owner as its own standby",
        (
            Edit(
                "hashring.ring:Ring.standby",
                "return self.standby_by_shard[shard] if self.standby_by_shard else None",
                "return self.owner_by_shard[shard]",
            ),
            Edit(
                "node.shards.replication:Replication._send_step",
                "standbys = self._ring.standby_by_shard",
                "standbys = self._ring.owner_by_shard",
            ),
        ),
        ("crash", "crash-for-good"),
    ),
    Mutant(
        "takeover-from-nothing",
        "a takeover of a dead owner's shard starts with empty counters",
        (
            Edit(
                "node.shards.ownership.ownership:ShardOwnership.take_over",
                "copies = [(min(at, now), counts) for at, counts in replica]",
                "copies = []",
            ),
        ),
        ("crash", "crash-for-good"),
    ),
    Mutant(
        "copy-not-fetched",
        "a restarted node does not fetch the replicas from its standby",
        (
            Edit(
                "node.shards.transfers.shard_search:ShardSearch._start_or_take",
                "copies.append((now, found))",
                "pass",
            ),
        ),
        ("quick-restart", "crash"),
    ),
    Mutant(
        "transfer-unread",
        "the receiver of a shard ignores the transferred counters",
        (
            Edit(
                "node.shards.ownership.shard_states:ShardStates._perform",
                "for at, counts in copies:\n    merge.restore(counts, at)",
                "pass",
            ),
        ),
        ("leave",),
    ),
    Mutant(
        "transfer-kept-by-sender",
        "a node continues to decide for a shard that it has transferred",
        (
            Edit(
                "node.shards.ownership.shard_states:ShardStates._perform",
                "self.held[shard] = 0",
                "pass",
            ),
            Edit(
                "node.shards.ownership.shard_states:ShardStates.apply_to_all",
                "held[shard] = states[shard] >= COUNTED",
                "held[shard] = held[shard] or states[shard] >= COUNTED",
            ),
        ),
        ("leave",),
    ),
    Mutant(
        "copy-unconfirmed",
        "a standby never acknowledges replicas",
        (
            Edit(
                "node.membership.peer_requests:PeerRequests.serve",
                'self._node.counters.add("copies_received")\nsession.send(Done(seq))',
                'self._node.counters.add("copies_received")',
            ),
        ),
        ("groups", "leave"),
    ),
    Mutant(
        "fallback-log-not-kept",
        "hits admitted for an unreachable owner are not recorded",
        (
            Edit(
                "node.shards.ownership.cover:Cover.log_row",
                "log.add(key, cost, period_ns, now)",
                "pass",
            ),
        ),
        ("split", "pause", "long-pause"),
    ),
    Mutant(
        "fallback-log-not-charged",
        "after a network partition, hits of the other side are not charged",
        (
            Edit(
                "node.shards.ownership.shard_states:ShardStates._perform",
                "merge.charge_arrived(counts, logs, now)",
                "pass",
            ),
        ),
        ("split", "pause", "long-pause"),
    ),
    Mutant(
        "fallback-log-charged-twice",
        "after a network partition, hits of the other side are charged twice",
        (
            Edit(
                "node.shards.counter_merge:CounterMerge.charge",
                "units += row[1::2]",
                "units += [2 * each for each in row[1::2]]",
            ),
        ),
        ("split", "long-pause"),
    ),
    Mutant(
        "ages-forgotten",
        "transferred hits get the time of the transfer",
        (
            Edit(
                "ringfence.limiter.reference.sliding_log:SlidingLogScheme.restore",
                "log.record(count, now - age_ns)",
                "log.record(count, now)",
            ),
        ),
        ("leave",),
    ),
)
