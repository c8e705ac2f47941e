"""Description of what a reload of the keys has changed, for the log and without secrets."""

from node.config.access import Access
from ringfence.transport.tls.certificates import ClientTls, ServerTls

__all__ = ["changes_between"]


def changes_between(
    before: tuple[Access, ClientTls, ServerTls], after: tuple[Access, ClientTls, ServerTls]
) -> list[str]:
    """Describe the differences between two versions of the keys; empty if there are none."""
    (old, old_client, old_server), (new, new_client, new_server) = before, after
    added = sorted(new.tokens.keys() - old.tokens.keys())
    revoked = sorted(old.tokens.keys() - new.tokens.keys())
    changed = [
        name
        for name in sorted(old.tokens.keys() & new.tokens.keys())
        if old.tokens[name] != new.tokens[name]
    ]
    named = (("added", added), ("revoked", revoked), ("changed", changed))
    words = [f"tokens {verb}: {', '.join(names)}" for verb, names in named if names]
    if old.cluster_keys != new.cluster_keys:
        words.append(_key_change(old.cluster_keys, new.cluster_keys))
    if old_server != new_server:
        words.append("certificate renewed")
    if old_client.ca_pem != new_client.ca_pem:
        words.append("authority changed")
    if old_client.by_node_name != new_client.by_node_name:
        words.append(
            f"node names {'are' if new_client.by_node_name else 'are not'} verified from now on"
        )
    return words


def _key_change(old: tuple[bytes, ...], new: tuple[bytes, ...]) -> str:
    accepted = f"{len(new)} accepted" if len(new) > 1 else "one accepted"
    used = "the same is used" if old[0] == new[0] else "another is used"
    return f"cluster keys changed: {accepted}, {used}"
