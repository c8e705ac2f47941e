import dataclasses
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from node.config.access import Access
from node.config.key_changes import changes_between
from ringfence.settings.token_file import Scope, TokenEntry
from ringfence.transport.tls.certificate_authority import self_signed
from ringfence.transport.tls.certificates import ClientTls
from ringfence.wire import token_digest

CHECK = frozenset([Scope.CHECK])
OLD, NEW = b"o" * 32, b"n" * 32
ACCESS = Access(
    (OLD,),
    "",
    {"app": TokenEntry(token_digest(b"1"), CHECK), "web": TokenEntry(token_digest(b"2"), CHECK)},
)
CLIENT = ClientTls(b"one authority")
SERVER = self_signed(datetime(2030, 1, 1, tzinfo=UTC))


def test_equal_keys_are_no_change() -> None:
    assert changes_between((ACCESS, CLIENT, SERVER), (ACCESS, CLIENT, SERVER)) == []


def test_token_changes_are_listed_by_kind_of_change() -> None:
    tokens = {
        "web": TokenEntry(token_digest(b"3"), CHECK),
        "new": TokenEntry(token_digest(b"4"), CHECK),
    }
    after = replace(ACCESS, tokens=tokens)
    app = replace(ACCESS.tokens["app"], domains=frozenset(["shop"]))
    with_changed_app = replace(ACCESS, tokens={**ACCESS.tokens, "app": app})

    assert changes_between((ACCESS, CLIENT, SERVER), (after, CLIENT, SERVER)) == [
        "tokens added: new",
        "tokens revoked: app",
        "tokens changed: web",
    ]
    assert changes_between((ACCESS, CLIENT, SERVER), (with_changed_app, CLIENT, SERVER)) == [
        "tokens changed: app"
    ]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ((OLD,), (OLD, NEW), "cluster keys changed: 2 accepted, the same is used"),
        ((OLD, NEW), (NEW, OLD), "cluster keys changed: 2 accepted, another is used"),
        ((NEW, OLD), (NEW,), "cluster keys changed: one accepted, the same is used"),
        ((OLD,), (NEW,), "cluster keys changed: one accepted, another is used"),
        ((OLD, NEW), (NEW,), "cluster keys changed: one accepted, another is used"),
    ],
)
def test_a_change_of_the_cluster_key_names_the_step(
    before: tuple[bytes, ...], after: tuple[bytes, ...], message: str
) -> None:
    old, new = (replace(ACCESS, cluster_keys=keys) for keys in (before, after))

    assert changes_between((old, CLIENT, SERVER), (new, CLIENT, SERVER)) == [message]


def test_changes_of_certificates_and_of_the_authority_are_distinguished() -> None:
    renewed = self_signed(datetime(2031, 1, 1, tzinfo=UTC))
    other = dataclasses.replace(CLIENT, ca_pem=b"another authority", by_node_name=True)

    assert changes_between((ACCESS, CLIENT, SERVER), (ACCESS, other, renewed)) == [
        "certificate renewed",
        "authority changed",
        "node names are verified from now on",
    ]
    assert changes_between((ACCESS, other, SERVER), (ACCESS, CLIENT, SERVER)) == [
        "authority changed",
        "node names are not verified from now on",
    ]
