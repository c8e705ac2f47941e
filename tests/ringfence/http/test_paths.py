"""Paths that can be exempt: only those that all servers interpret in the same way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.http.paths import has_one_reading

names = st.text("abcdefgh-_~!$&'()*+,=:@é .", min_size=1).filter(lambda name: set(name) != {"."})


@pytest.mark.parametrize("path", ["/", "/static/", "/static/a.css", "/caf%C3%A9/x", "/a b", "/..."])
def test_plain_paths_have_one_reading(path: str) -> None:
    assert has_one_reading(path)


@given(parts=st.lists(names, min_size=1))
def test_paths_of_plain_names_have_one_reading(parts: list[str]) -> None:
    assert has_one_reading("/" + "/".join(parts))


@pytest.mark.parametrize(
    "path",
    [
        "",
        "static/x",
        "*",
        "//static/x",
        "/static//x",
        "/static/./x",
        "/static/../x",
        "/static/..",
        "/static/.",
        "/static/%2e%2e/x",
        "/static/.%2E/x",
        "/static/..;/x",
        "/static/..;a=b/x",
        "/static;/x",
        "/static/..%3b/x",
        "/static/..%2fx",
        "/static/..%5cx",
        "/static/..\\x",
        "/static/%252e%252e/x",
        "/static/%",
        "/static/%c0%ae%c0%ae/x",
        "/static/\x00",
        "/static/%00",
        "/static/%0d%0a",
    ],
)
def test_paths_that_servers_read_differently_have_more_than_one_reading(path: str) -> None:
    assert not has_one_reading(path)
