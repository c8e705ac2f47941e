"""Normalization of paths: all spellings of a path have one normal form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.gateway.http.path_normalization import plain_path


@pytest.mark.parametrize(
    ("uri", "plain"),
    [
        ("", "/"),
        ("/", "/"),
        ("/login", "/login"),
        ("/login/", "/login/"),
        ("login", "/login"),
        ("/login?next=/static/../x", "/login"),
        ("/login#here?x", "/login"),
        ("/static/../login", "/login"),
        ("/static/%2e%2e/login", "/login"),
        ("/static/.%2E/login", "/login"),
        ("/static%2F..%2flogin", "/login"),
        ("/%6cogin", "/login"),
        ("//login", "/login"),
        ("http://example.org/login?x", "/login"),
        ("HTTPS://example.org", "/"),
        ("http://example.org?x", "/"),
        ("/x//../login", "/login"),
        ("/./login/.", "/login/"),
        ("/login/x/..", "/login/"),
        ("/login/..", "/"),
        ("/../../login", "/login"),
        ("/%3Fa%23b", "/?a#b"),
        ("/100%/%zz/%4", "/100%/%zz/%4"),
        ("/static/%252e%252e/login", "/static/%2e%2e/login"),
        ("/caf%C3%A9", "/café"),
        ("/%ff", "/\ufffd"),
        ("/...", "/..."),
    ],
)
def test_paths_are_normalized_as_in_nginx(uri: str, plain: str) -> None:
    assert plain_path(uri) == plain


PIECES = st.sampled_from(["/", "//", ".", "..", "%2e", "%2F", "a", "static", "%", "?", "#", "%25"])
URIS = st.lists(PIECES | st.text(max_size=3)).map("".join)


@given(uri=URIS)
def test_normalized_paths_have_no_empty_or_parent_segments(uri: str) -> None:
    path = plain_path(uri)

    assert path.startswith("/")
    assert not {".", ".."} & set(path.split("/"))
    assert "//" not in path


@given(uri=URIS)
def test_a_normalized_path_is_unchanged(uri: str) -> None:
    path = plain_path(uri)

    if not set(path) & set("%?#"):  # Escaped characters are decoded only once.
        assert plain_path(path) == path
