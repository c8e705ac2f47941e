"""Permissions of one caller: scopes, domains, and the rate of reports."""

from collections.abc import Sequence

from node.requests.client_reports import Pace
from node.requests.sessions.caller import Caller
from node.requests.sessions.node_api import NodeApi
from node.requests.sessions.sent_answers import Sender
from ringfence.settings.token_file import Scope
from ringfence.wire import ErrorCode, Refused, Role

__all__ = ["Permissions"]


class Permissions:
    """Permissions of one caller. A method that finds a permission missing also sends the
    refusal."""

    def __init__(self, api: NodeApi, caller: Caller, role: Role, now: float) -> None:
        self.role = role
        self._api = api
        self._caller = caller
        self._name = ""
        self._scopes: frozenset[Scope] = frozenset()
        self._report_pace = Pace(now)

    def grant(self, sender: Sender[Caller], scopes: frozenset[Scope]) -> None:
        """Set the scopes of the caller. Without the scope `refund`, its recent charges limit its
        refunds."""
        self._name, self._scopes = sender.identity[0], scopes
        is_bounded = self.role is Role.CLIENT and Scope.REFUND not in scopes
        sender.ledger = self._api.access.refund_ledger(sender.identity[0]) if is_bounded else None

    def may(self, seq: int, scope: Scope) -> bool:
        """Return whether the caller has this scope; refuse the request otherwise."""
        if scope in self._scopes:
            return True
        scopes = ",".join(each for each in Scope if each is scope or each in self._scopes)
        reason = (
            f"the token {self._name!r} lacks the scope {scope.value!r}; use a token that has it, "
            f"or add one with `ringfence keys add-token DIR NAME:{scopes}`"
        )
        self._refuse(seq, reason)
        return False

    def may_report(self, seq: int, now: float) -> bool:
        """Return whether the caller may send a report at the instant `now` in seconds."""
        if self.role is not Role.CLIENT:
            self._refuse(seq, "only clients report decisions")
            return False
        if not self.may(seq, Scope.CHECK):
            return False
        if self._report_pace.take(now):
            return True
        self._api.counters.refused("report_pace")
        reason = "reports must come at most twice a second"
        self._caller.send(Refused(seq, ErrorCode.OVERLOADED, reason))
        return False

    def may_use(self, seq: int, sender: Sender[Caller], keys: Sequence[bytes]) -> bool:
        """Return whether the caller may use these keys; refuse the request otherwise."""
        if self.role is Role.NODE:
            return True
        reason = self._api.access.domain_error(sender.identity[0], keys)
        if reason is None:
            return True
        self._refuse(seq, reason)
        return False

    def _refuse(self, seq: int, reason: str) -> None:
        self._api.counters.refused("not_permitted")
        self._caller.send(Refused(seq, ErrorCode.NOT_PERMITTED, reason))
