"""Mutants (planted bugs) in membership and failure detection."""

from simulations.mutants.value import Edit, Mutant

__all__ = ["GOSSIP"]

_HEAR = "gossip.local_member:LocalMember.on_record"

GOSSIP = (
    Mutant(
        "refutation-dropped",
        "a suspected member does not refute the suspicion",
        (Edit(_HEAR, "self.update(now, incarnation=record.incarnation + 1)", "pass"),),
        ("pause", "long-pause"),
    ),
    Mutant(
        "refutation-without-incarnation",
        "a refutation does not raise the incarnation, so other members ignore it",
        (Edit(_HEAR, "record.incarnation + 1)", "record.incarnation)"),),
        ("pause", "long-pause"),
    ),
    Mutant(
        "older-generation-kept",
        "a node that restarts with its clock set back does not take a newer generation",
        (
            Edit(
                _HEAR,
                "self.update(now, generation=record.generation + 1, incarnation=0)",
                "self.update(now, incarnation=record.incarnation + 1)",
            ),
        ),
        ("clock-back",),
    ),
    Mutant(
        "smaller-incarnation-wins",
        "the record with the smaller incarnation supersedes the other",
        (
            Edit(
                "gossip.members.record:Record.replaces",
                "self.rank > other.rank",
                "self.rank < other.rank",
            ),
        ),
        ("repeats", "pause"),
    ),
    Mutant(
        "status-before-incarnation",
        "the worse status wins before the incarnation is compared",
        (
            Edit(
                "gossip.members.record:Record.rank",
                "self.generation, self.incarnation, self.status",
                "self.generation, self.status, self.incarnation",
            ),
        ),
        ("pause", "leave"),
    ),
    Mutant(
        "dead-beats-alive",
        "a member that was declared dead is never accepted as alive again",
        (
            Edit(
                "gossip.members.record:Record.replaces",
                "if self.rank != other.rank:",
                "if other.status is Status.DEAD:\n    return False\nif self.rank != other.rank:",
            ),
        ),
        ("crash", "long-pause"),
    ),
    Mutant(
        "suspicion-never-ends",
        "a suspect is never declared dead",
        (
            Edit(
                "gossip.member_states:MemberStates.declare_dead",
                "self._adopt(replace(record, status=Status.DEAD, "
                "accuser=self._table.me.name), now)",
                "return",
            ),
        ),
        ("crash-for-good",),
    ),
    Mutant(
        "suspicion-ends-at-once",
        "a suspect is declared dead at once, without time to refute",
        (
            Edit(
                "gossip.failure_detection.suspicion_timers:Suspicion.deadline",
                "confirmations = max(0, len(self.accusers) - 1)",
                "return self.began",
            ),
        ),
        ("pause", "lossy"),
    ),
    Mutant(
        "no-indirect-probe",
        "no indirect probe is sent when a member does not answer",
        (
            Edit(
                "gossip.failure_detection.prober:Prober._helpers",
                "count = self._settings.indirect",
                "return []",
            ),
        ),
        ("lossy",),
    ),
    Mutant(
        "indirect-ack-kept",
        "a relay of an indirect probe does not forward the acknowledgement",
        (
            Edit(
                "gossip.failure_detection.prober:Prober._relay_ack",
                "self._outbox.send(relay.requester, requester, relayed, first)",
                "pass",
            ),
        ),
        ("lossy",),
    ),
    Mutant(
        "left-is-dead",
        "a graceful leave is disseminated as a death",
        (Edit("gossip.membership:Membership.left", "Status.LEFT", "Status.DEAD"),),
        ("leave",),
    ),
    Mutant(
        "digest-is-constant",
        "all member tables have the same digest, so differences are not detected",
        (
            Edit(
                "gossip.members.member_table:_hash_of",
                "if record.is_gone:",
                "if True:",
            ),
        ),
        ("join-in-cut",),
    ),
    Mutant(
        "no-exchange-on-difference",
        "members with different digests never exchange their tables",
        (
            Edit(
                "gossip.dissemination.exchanges:Exchanges.on_digest",
                "self._ask(record.address)",
                "pass",
            ),
        ),
        ("join-in-cut",),
    ),
    Mutant(
        "one-agrees-all-agree",
        "an equal digest of one member cancels the exchange with a member whose digest differs",
        (
            Edit(
                "gossip.dissemination.exchanges:Exchanges.on_digest",
                "self._differs_since.pop(sender, None)",
                "self._differs_since.clear()",
            ),
        ),
        ("join-in-cut",),
    ),
    Mutant(
        "replays-taken",
        "a repeated datagram is accepted twice",
        (
            Edit(
                "gossip.datagrams.seal:_Window.take",
                "if self._highest - counter >= _WINDOW or self._received_bits & bit:",
                "if False:",
            ),
        ),
        ("repeats",),
    ),
    Mutant(
        "own-pause-unnoticed",
        "after its own pause, a member suspects others because of answers that it missed",
        (
            Edit(
                "gossip.membership:Membership._notice_lag",
                "due = self.next_deadline()",
                "return",
            ),
        ),
        ("long-pause",),
    ),
    Mutant(
        "clock-never-trusted-again",
        "a member whose clock was wrong stays suspect although its clock is right again",
        (
            Edit(
                "gossip.cluster_clock:ClusterClock._update_trust",
                "elif difference_ns < _TRUST_NS:",
                "elif False:",
            ),
        ),
        ("clock-wrong",),
    ),
)
