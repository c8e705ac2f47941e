"""Mutants (planted bugs) in request handling: deciding member, deduplication, time-outs."""

from simulations.mutants.value import Edit, Mutant

__all__ = ["ANSWERS"]

_RESERVE = "ringfence.client.reservation:reserve"
_SETTLE = "ringfence.integrations._core.policy:Policy.settle"

ANSWERS = (
    Mutant(
        "repeats-counted",
        "a repeated request is decided again",
        (
            Edit(
                "node.requests.sessions.sent_answers:Sender.has_asked",
                "return seq in self._answers",
                "return False",
            ),
        ),
        ("resets",),
    ),
    Mutant(
        "repeats-unanswered",
        "a repeated request is neither counted nor answered",
        (
            Edit(
                "node.requests.sessions.request_intake:RequestIntake._is_accepted",
                "for answer in answers:",
                "for answer in ():",
            ),
        ),
        ("resets",),
    ),
    Mutant(
        "decided-by-non-owner",
        "a node decides every check that it receives, also for keys of other owners",
        (
            Edit(
                "node.requests.handler:RequestHandler.decide_now",
                "is_here = self.placement.holds(batch.keys) and not self._is_elsewhere(batch)",
                "is_here = not self._is_elsewhere(batch)",
            ),
        ),
        ("leave", "crash"),
    ),
    Mutant(
        "group-not-settled",
        "a request that one owner denies stays charged at another owner",
        (
            Edit(
                "ringfence.peering.routing.refunds:Refunds.undo_denied_groups",
                "self.refund_answered(pending, undone)",
                "pass",
            ),
        ),
        ("groups",),
    ),
    Mutant(
        "limits-of-other-rows",
        "a part of a request also has the limits of its other parts, so its owner refuses it",
        (
            Edit(
                "ringfence.wire.messages.request_columns:Batch.take",
                "if len(limits) > 1 and len(which) < len(self.which):",
                "if False:",
            ),
        ),
        ("overrides",),
    ),
    Mutant(
        "refund-too-young",
        "a refund contains an age that is too small, so it does not match its charge",
        (
            Edit(
                "ringfence.peering.routing.refunds:age_ns_of",
                "return limit.refund_age_ns(passed_ns)",
                "return passed_ns",
            ),
        ),
        ("groups",),
    ),
    Mutant(
        "stated-age-without-allowance",
        "a refund of a caller from a log often misses its charge, because it arrives late",
        (
            Edit(
                "ringfence.client.requests.dispatcher:Dispatcher._decide",
                "[limit.refund_age_ns(age_ns) if limit else age_ns for limit in limits]",
                "[age_ns] * len(limits)",
            ),
        ),
        ("refunds",),
    ),
    Mutant(
        "reservation-refunds-newest",
        "the end of a reservation refunds the newest units, not those of its check",
        (Edit(_RESERVE, "age = decider.time() - asked_at", "age = 0.0"),),
        ("reservations",),
    ),
    Mutant(
        "cost-above-estimate-free",
        "the end of a reservation does not charge the cost above its estimate",
        (Edit(_RESERVE, "costs = [more[each] for each in parts]", "costs = [0 for _ in parts]"),),
        ("reservations",),
    ),
    Mutant(
        "reservation-kept-whole",
        "the end of a reservation does not refund what its real cost is below its estimate",
        (Edit(_RESERVE, "target, decision, -more[True], age", "target, decision, 0, age"),),
        ("reservations",),
    ),
    Mutant(
        "uncounted-estimate-trusted",
        "the end of a reservation takes the estimate as spent also where no node has counted it",
        (
            Edit(
                _RESERVE,
                "reservation.cost - reservation.reserved * each for",
                "reservation.cost - reservation.reserved for",
            ),
        ),
        ("reservations-cut",),
    ),
    Mutant(
        "response-refunds-newest",
        "a middleware refunds the newest units instead of the older ones of its request",
        (Edit(_SETTLE, "age = self._clock() - spent.asked_at", "age = 0.0"),),
        ("costs-after",),
    ),
    Mutant(
        "response-charges-whole-cost",
        "a middleware charges the whole cost of a response in addition to its estimate",
        (
            Edit(
                _SETTLE,
                "yield Charge(counted, actual - spent.cost)",
                "yield Charge(counted, actual)",
            ),
        ),
        ("costs-after",),
    ),
    Mutant(
        "standby-never-asked",
        "the standby is not asked when the owner does not answer",
        (
            Edit(
                "ringfence.peering.routing.router:Router.__init__",
                "(False, False, True) if retries else (False, True)",
                "(False,)",
            ),
        ),
        ("crash",),
    ),
    Mutant(
        "not-sent-again",
        "requests in flight on a broken connection are not sent again",
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
        "a request to a member that does not answer never times out",
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
        "a client never updates its hash ring",
        (
            Edit(
                "ringfence.client.cluster.view_refresh:ViewRefresher.refresh",
                "self._adopt(members)",
                "self._adopt(members) if self._router.routes is None else None",
            ),
        ),
        ("leave", "crash"),
    ),
)
