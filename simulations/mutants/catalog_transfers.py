"""Mistakes in whose counters are where: copies, handoff, tallies."""

from simulations.mutants.value import Edit, Mutant

__all__ = ["MOVES"]

MOVES = (
    Mutant(
        "dirty-key-lost",
        "a key that was charged alone is not marked for the standby",
        (
            Edit(
                "node.shards.ownership:ShardOwnership.decided",
                "if batch.op is Op.CHECK and any(codes) and max(codes) > _LAST_CHARGED:",
                "if len(keys) == 1:\n    keys = []\nelif max(codes) > _LAST_CHARGED:",
            ),
        ),
        ("crash", "crash-for-good"),
    ),
    Mutant(
        "copy-never-sent",
        "the standby is sent nothing",
        (
            Edit(
                "node.shards.replication:Replication.flush",
                "if not self._holdings.dirty:",
                "if True:",
            ),
        ),
        ("crash", "crash-for-good"),
    ),
    Mutant(
        "copy-confirmed-unkept",
        "a standby says that it has a copy, and keeps none",
        (
            Edit(
                "node.shards.ownership:ShardOwnership.keep_copy",
                "self.copies.keep(sender, counts, now)",
                "pass",
            ),
        ),
        ("crash", "crash-for-good"),
    ),
    Mutant(
        "first-copy-kept",
        "a standby keeps the first copy of a key, and no newer one",
        (
            Edit(
                "node.shards.replicas:Replicas.keep",
                "rows = self._shards.setdefault(shard, {})",
                "rows = self._shards.setdefault(shard, {})\nif key in rows:\n    continue",
            ),
        ),
        ("crash", "crash-for-good"),
    ),
    Mutant(
        "new-standby-unfilled",
        "who becomes the standby of a key is sent what changes, and not what was there",
        (
            Edit(
                "node.shards.replication:Replication._mark_for_new_standbys",
                "keys = iter(self._engine.keys()) if changed else iter(())",
                "keys = iter(())",
            ),
        ),
        ("two-crashes",),
    ),
    Mutant(
        "restarted-standby-unfilled",
        "a standby that was started again before anybody missed it gets no copies of what rests",
        (
            Edit(
                "node.shards.replication:Replication.restarted",
                "self._forgetful[name] = None",
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
        ),
        ("crash", "crash-for-good"),
    ),
    Mutant(
        "takeover-from-nothing",
        "who takes a dead owner's shard over counts from nothing",
        (
            Edit(
                "node.shards.ownership:ShardOwnership.take_over",
                "self._restore(counts, min(at, now))",
                "pass",
            ),
        ),
        ("crash", "crash-for-good"),
    ),
    Mutant(
        "copy-not-fetched",
        "a node that was started again does not go on from what its standby has",
        (
            Edit(
                "node.shards.handoff:_Search._give_up",
                "copies.append((now, self._copies[shard]))",
                "pass",
            ),
        ),
        ("quick-restart", "crash"),
    ),
    Mutant(
        "gift-unread",
        "a shard that is given is held, without its counters",
        (
            Edit(
                "node.shards.ownership:ShardOwnership.adopt",
                "if not self.held[shard]:\n    self._restore(counts, now)\n    self._hold(shard)",
                "if not self.held[shard]:\n    self._hold(shard)",
            ),
        ),
        ("leave",),
    ),
    Mutant(
        "gift-kept-by-giver",
        "who gives a shard away goes on deciding for it",
        (
            Edit(
                "node.shards.ownership:ShardOwnership._give",
                "self.held[shard] = 0",
                "pass",
            ),
        ),
        ("leave",),
    ),
    Mutant(
        "copy-unconfirmed",
        "a standby keeps its copies, and never says so",
        (
            Edit(
                "node.node:Node.serve_peer",
                'self.counters.add("copies_received")\nsession.send(Done(seq))',
                'self.counters.add("copies_received")',
            ),
        ),
        ("groups", "leave"),
    ),
    Mutant(
        "tally-not-kept",
        "what was admitted in another's place is not written down for it",
        (
            Edit(
                "node.shards.ownership:ShardOwnership._tally",
                "tally.add(key, cost, self._period_at(batch, at), now)",
                "pass",
            ),
        ),
        ("split", "pause", "long-pause"),
    ),
    Mutant(
        "tally-not-charged",
        "when a split is over, what the other side admitted is not charged",
        (
            Edit(
                "node.shards.ownership:ShardOwnership.adopt",
                "self._charge(dict(zip(counts.keys, tallies, strict=True)), now)",
                "pass",
            ),
        ),
        ("split", "pause", "long-pause"),
    ),
    Mutant(
        "tally-charged-twice",
        "when a split is over, what the other side admitted is charged twice",
        (
            Edit(
                "node.shards.ownership:ShardOwnership._charge",
                "self._engine.charge(keys, units, ages_ns, now)",
                "self._engine.charge(keys + keys, units + units, ages_ns + ages_ns, now)",
            ),
        ),
        ("split", "long-pause"),
    ),
    Mutant(
        "ages-forgotten",
        "hits that move to another node count as if they were made just now",
        (
            Edit(
                "ringfence.limiter.reference.sliding_log:SlidingLogScheme.revive",
                "log.record(count, now - age_ns)",
                "log.record(count, now)",
            ),
        ),
        ("leave",),
    ),
)
