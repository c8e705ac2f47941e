"""Mistakes in who is believed to be there."""

from simulations.mutants.value import Edit, Mutant

__all__ = ["GOSSIP"]

_HEAR = "gossip.local_member:LocalMember.hear"

GOSSIP = (
    Mutant(
        "refutation-dropped",
        "a member that is accused does not say that it lives",
        (Edit(_HEAR, "self.say(now, incarnation=record.incarnation + 1)", "pass"),),
        ("pause", "long-pause"),
    ),
    Mutant(
        "refutation-without-incarnation",
        "a member refutes an accusation without raising its incarnation, so nobody believes it",
        (Edit(_HEAR, "record.incarnation + 1)", "record.incarnation)"),),
        ("pause", "long-pause"),
    ),
    Mutant(
        "older-generation-kept",
        "a node that was started again with its clock set back does not take a newer generation "
        "than its earlier life had",
        (
            Edit(
                _HEAR,
                "self.say(now, generation=record.generation + 1, incarnation=0)",
                "self.say(now, incarnation=record.incarnation + 1)",
            ),
        ),
        ("clock-back",),
    ),
    Mutant(
        "smaller-incarnation-wins",
        "of two records of one member the older one holds",
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
        "the worse status holds, whatever the incarnations are",
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
        "who was once held dead is never believed to live again",
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
                "gossip.membership:Membership._declare_dead",
                "self._adopt(replace(record, status=Status.DEAD, accuser=self.me.name), now)",
                "return",
            ),
        ),
        ("crash-for-good",),
    ),
    Mutant(
        "suspicion-ends-at-once",
        "a suspect is declared dead before it can refute anything",
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
        "nobody is asked to ping a member that has not answered",
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
        "a helper keeps to itself that the silent member has answered",
        (
            Edit(
                "gossip.failure_detection.prober:Prober._pass_on",
                "self._outbox.answer(relay.asker, asker, passed_on, (target,) if target and is_news"
                " else ())",
                "pass",
            ),
        ),
        ("lossy",),
    ),
    Mutant(
        "left-is-dead",
        "who leaves by its own will is told of as if it had died",
        (Edit("gossip.membership:Membership.left", "Status.LEFT", "Status.DEAD"),),
        ("leave",),
    ),
    Mutant(
        "digest-is-constant",
        "all beliefs have one digest, so no difference is ever noticed",
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
        "two that believe different things never exchange their lists",
        (
            Edit(
                "gossip.dissemination.exchanges:Exchanges.compare",
                "self._ask(record.address)",
                "pass",
            ),
        ),
        ("join-in-cut",),
    ),
    Mutant(
        "one-agrees-all-agree",
        "one member that believes the same makes forget that another one does not",
        (
            Edit(
                "gossip.dissemination.exchanges:Exchanges.compare",
                "self._differs_since.pop(sender, None)",
                "self._differs_since.clear()",
            ),
        ),
        ("join-in-cut",),
    ),
    Mutant(
        "replays-taken",
        "a datagram that comes twice is taken twice",
        (
            Edit(
                "gossip.datagrams.seal:_Window.take",
                "if self._highest - counter >= _WINDOW or self._taken & bit:",
                "if False:",
            ),
        ),
        ("repeats",),
    ),
    Mutant(
        "own-pause-unnoticed",
        "a member that stood still holds against others what it missed",
        (
            Edit(
                "gossip.membership:Membership._notice_lag",
                "due = self.next_deadline()",
                "return",
            ),
        ),
        ("long-pause",),
    ),
)
