"""Mistakes in who decides a check, how often it is counted and when it is answered."""

from simulations.mutants.value import Edit, Mutant

__all__ = ["ANSWERS"]

ANSWERS = (
    Mutant(
        "repeats-counted",
        "a request that comes again is decided again",
        (
            Edit(
                "node.requests.deduplication.sent_answers:Sender.has_asked",
                "return seq in self._answers",
                "return False",
            ),
        ),
        ("resets",),
    ),
    Mutant(
        "repeats-unanswered",
        "a request that comes again is not counted, and not answered either",
        (
            Edit(
                "node.requests.sessions.session:Session._ask",
                "for answer in answers:",
                "for answer in ():",
            ),
        ),
        ("resets",),
    ),
    Mutant(
        "decided-by-non-owner",
        "whoever is asked decides, whether it holds the counter or not",
        (
            Edit(
                "node.requests.handler:RequestHandler.decide_now",
                "is_here = self._has_all(batch.keys) and not self._is_elsewhere(batch)",
                "is_here = not self._is_elsewhere(batch)",
            ),
        ),
        ("leave", "crash"),
    ),
    Mutant(
        "group-not-settled",
        "a check that one owner denies stays charged with another owner",
        (
            Edit(
                "ringfence.peering.router:Router._settle",
                "self.refund(batch, undone, gathering.verdicts, gathering.asked_at)",
                "pass",
            ),
        ),
        ("groups",),
    ),
    Mutant(
        "refund-too-young",
        "what is given back is not found when it arrives later than the check did",
        (
            Edit(
                "ringfence.peering.target:age_ns_of",
                "return passed_ns + min(passed_ns, _LATER_NS)",
                "return passed_ns",
            ),
        ),
        ("groups",),
    ),
    Mutant(
        "standby-never-asked",
        "when an owner does not answer, nobody else is asked",
        (
            Edit(
                "ringfence.peering.router:Router.__init__",
                "(False, False, True) if retries else (False, True)",
                "(False,)",
            ),
        ),
        ("crash",),
    ),
    Mutant(
        "not-sent-again",
        "what was under way when a connection broke is not asked again",
        (
            Edit(
                "ringfence.peering.link.frames_in_flight:FramesInFlight.send_again",
                "for frame in self.by_seq.values():",
                "for frame in ():",
            ),
        ),
        ("resets",),
    ),
    Mutant(
        "waits-for-ever",
        "a question to a member that does not answer is never given up",
        (
            Edit(
                "ringfence.peering.link.request_queue:RequestQueue._send_batches",
                "due = now + self.in_flight.answer_timeout",
                "due = now + 3600.0",
            ),
        ),
        ("crash", "split"),
    ),
    Mutant(
        "ring-never-renewed",
        "a client goes on asking the members that it met first",
        (
            Edit(
                "ringfence.client.cluster.cluster:Cluster._refresh",
                "self._adopt(members)",
                "self._adopt(members) if self._router.routes is None else None",
            ),
        ),
        ("leave", "crash"),
    ),
)
