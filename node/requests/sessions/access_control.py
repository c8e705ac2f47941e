"""Access control for clients and members: their scopes, and the keys that a token may use."""

from collections.abc import Sequence

from node.config.access import Access
from node.context.node_context import NodeContext
from node.requests.refunds.refund_ledger import RefundLedger
from node.requests.sessions.auth_failure_log import AuthFailureLog
from node.requests.sessions.caller import Caller
from node.requests.sessions.sent_answers import Sender, SentAnswers
from ringfence.settings.token_file import Scope
from ringfence.transport.interface import Address, Connection
from ringfence.wire import Hello, Role

__all__ = ["AccessControl"]


class AccessControl:
    """Checks senders against the current keys and tokens, and remembers the senders."""

    def __init__(self, node: NodeContext, access: Access, senders: SentAnswers[Caller]) -> None:
        self.current = access
        """Keys and tokens in force."""
        self._node = node
        self._senders = senders
        self._ledgers: dict[str, RefundLedger] = {}
        """By token name, for tokens without the scope `refund`."""
        self._refusal_log = AuthFailureLog()

    def prove(self, connection: Connection) -> bytes:
        """Return this node's credential for one connection to a peer, computed with the current
        cluster key."""
        return self.current.proof_of(self._node.name, connection.binding)

    def admit(self, hello: Hello, address: Address, binding: bytes) -> frozenset[Scope] | None:
        """Return the scopes of the sender of a `Hello` message; None to refuse it.

        `binding` is the secret of its connection.
        """
        scopes = self.current.scopes_of(hello, binding)
        if scopes is None:
            self._refusal_log.log(hello, address, self._node.clock.now())
        return scopes

    def refusal_of(self, hello: Hello) -> str:
        """Describe to the sender of a refused `Hello` why it was refused, and what to change."""
        name = repr(hello.name)
        if hello.role is not Role.NODE:
            return (
                f"this node does not know the token of {name}; add it to tokens.toml of this node, "
                "or use another one"
            )
        # A proof combines the key and the cluster name, so this node cannot tell which one differs.
        refusal = f"this node does not accept the proof of {name} that it belongs to the cluster"
        if self.current.is_open:  # A node with keys has already rejected this node's certificate.
            return (
                f"{refusal}: the setting `cluster` of {name} must be {self.current.cluster!r}, "
                "got another name"
            )
        return (
            f"{refusal}; copy cluster.key from a node of this cluster into the directory `keys` of "
            f"{name}, and set `cluster` to the name that this cluster has"
        )

    def sender(self, hello: Hello) -> Sender[Caller]:
        """Return the stored answers of the sender of a `Hello`, which outlive its connections."""
        return self._senders.of(hello.role, hello.name, hello.session)

    def refund_ledger(self, name: str) -> RefundLedger:
        """Return the recent charges of a token, which limit its refunds."""
        if name not in self._ledgers:
            self._ledgers[name] = RefundLedger(self._node.clock.now, self._node.rules.limit_of)
        return self._ledgers[name]

    def domain_error(self, name: str, keys: Sequence[bytes]) -> str | None:
        """Return the reason why a token must not use these keys; None when it may use them."""
        token = self.current.tokens.get(name)
        if token is None or token.domains is None:
            return None
        domains = token.domains
        for rule_id in dict.fromkeys([int.from_bytes(key[:8], "big") for key in keys]):
            rule = self._node.rules.rule(rule_id)
            if rule is None or rule.domain not in domains:
                got, remedy = "a limit in no rule", "use a token without domains"
                if rule is not None:
                    got = f"the domain {rule.domain!r}"
                    remedy = "add the domain to its domains in tokens.toml"
                return (
                    f"the token {name!r} must use rules of {', '.join(sorted(domains))}, "
                    f"got {got}; {remedy}"
                )
        return None

    def count_excess_refund(self, units: int) -> None:
        """Count refunded units that were ignored because this token was not charged for them."""
        if units:
            self._node.counters.add("refused_refunds", units)
