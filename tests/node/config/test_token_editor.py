import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.config.token_editor import record, token_names, with_record, without_record
from ringfence.errors import ConfigError
from ringfence.settings.token_file import Scope
from ringfence.wire import token_digest

SECRET = b"s" * 32
DOMAINS = ['sh"op', "a\\b", "\u00e9", "\U0001f600", "tab\t"]
NAMES = st.lists(
    st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8),
    unique=True,
    min_size=1,
    max_size=6,
)


def test_a_record_holds_the_digest_the_scopes_and_the_domains() -> None:
    text = record("app", SECRET, [Scope.CHECK, Scope.OBSERVE], DOMAINS)

    assert tomllib.loads(text) == {
        "tokens": {
            "app": {
                "digest": token_digest(SECRET).hex(),
                "scopes": ["check", "observe"],
                "domains": DOMAINS,
            }
        }
    }


@given(names=NAMES, index=st.integers(0, 5))
def test_adding_and_then_removing_a_token_leaves_the_others_unchanged(
    names: list[str], index: int
) -> None:
    text = ""
    for name in names:
        text = with_record(text, record(name, name.encode(), [Scope.CHECK]))
    removed = names[index % len(names)]

    remaining = without_record(text, removed)

    assert token_names(text) == names
    assert token_names(remaining) == [name for name in names if name != removed]
    expected = tomllib.loads(text)["tokens"]
    del expected[removed]
    assert tomllib.loads(remaining).get("tokens", {}) == expected


def test_comments_and_hand_written_records_are_kept() -> None:
    text = (
        "# All tokens of the shop.\n\n"
        "[tokens.web] # the web site\n"
        'digest = "00"\nscopes = [\n  "check",\n]\n\n'
        "# For Prometheus.\n"
        '[ tokens . "prometheus" ]\n'
        'digest = "11"\nscopes = ["observe"]\n'
    )

    assert without_record(text, "web") == (
        "# All tokens of the shop.\n\n"
        "# For Prometheus.\n"
        '[ tokens . "prometheus" ]\n'
        'digest = "11"\nscopes = ["observe"]\n'
    )
    assert without_record(text, "prometheus").endswith('"check",\n]\n\n# For Prometheus.\n')
    assert with_record(text, record("app", SECRET, [Scope.CHECK])).startswith(text)


def test_a_comment_on_the_next_record_is_kept_without_a_blank_line() -> None:
    text = '[tokens.web]\n# For the app.\n[tokens.app]\ndigest = "11"\n'

    assert without_record(text, "web") == '# For the app.\n[tokens.app]\ndigest = "11"\n'


def test_lines_that_only_look_like_the_header_of_a_record_are_kept() -> None:
    text = 'places = [\n[1, 2],\n["a"],\n]\n[other]\nx = 1\n[tokens.app]\ndigest = "11"\n'

    assert without_record(text, "app") == text.partition("[tokens")[0]


@pytest.mark.parametrize(
    "text",
    [
        '[tokens]\nweb = {digest = "00", scopes = []}\n',
        'tokens.web.digest = "00"\n',
        '[tokens.web]\ndigest = "00"\n[tokens.web.more]\nx = 1\n',
    ],
)
def test_a_token_without_its_own_table_must_be_edited_by_hand(text: str) -> None:
    with pytest.raises(ConfigError, match="remove it by hand"):
        without_record(text, "web")


def test_a_file_that_cannot_hold_a_record_raises_config_error() -> None:
    with pytest.raises(ConfigError, match="must be TOML"):
        with_record("tokens = {}\n", record("app", SECRET, [Scope.CHECK]))
    with pytest.raises(ConfigError, match="must be a table"):
        token_names("tokens = 3\n")
