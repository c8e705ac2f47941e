import hashlib
import hmac

from hypothesis import given
from hypothesis import strategies as st

from ringfence.wire.bounds import MAX_CREDENTIAL
from ringfence.wire.credentials import matches, node_proof, proves, token_digest

keys = st.binary(min_size=16, max_size=64)
names = st.text(max_size=20)


@given(key=keys, name=names)
def test_a_proof_holds_for_its_own_key_and_name(key, name):
    proof = node_proof(key, name)

    assert proves(key, name, proof)
    assert len(proof) <= MAX_CREDENTIAL


@given(key=keys, name=names, other=names)
def test_a_proof_holds_for_no_other_name(key, name, other):
    assert proves(key, other, node_proof(key, name)) == (name == other)


@given(name=names)
def test_a_proof_holds_for_no_other_key(name):
    assert not proves(b"another cluster!", name, node_proof(b"a cluster's key!", name))


@given(proof=st.binary(max_size=64))
def test_random_proofs_do_not_hold(proof):
    assert not proves(b"a cluster's key!", "n1", proof)


def test_a_proof_has_the_documented_format():
    key, connection_digest = b"a cluster's key!", hashlib.sha256(b"this connection").digest()
    proven_text = b"ringfence wire 1: node\x00" + connection_digest + b"ringfence\x00n1"

    proof = node_proof(key, "n1", "ringfence", b"this connection")

    assert proof == hmac.digest(key, proven_text, "sha256")


def test_a_proof_for_one_connection_does_not_hold_on_another():
    proof = node_proof(b"a cluster's key!", "n1", "ours", b"one")

    assert proves(b"a cluster's key!", "n1", proof, "ours", b"one")
    assert not proves(b"a cluster's key!", "n1", proof, "ours", b"two")


def test_a_proof_for_one_cluster_does_not_hold_in_another():
    proof = node_proof(b"a cluster's key!", "n1", "ours")

    assert proves(b"a cluster's key!", "n1", proof, "ours")
    assert not proves(b"a cluster's key!", "n1", proof, "theirs")


@given(secret=st.binary(max_size=64), other=st.binary(max_size=64))
def test_a_digest_matches_only_its_own_secret(secret, other):
    assert matches(secret, token_digest(secret))
    assert matches(other, token_digest(secret)) == (secret == other)


def test_a_digest_does_not_contain_the_secret():
    assert b"secret" not in token_digest(b"secret")
