import copy
from contextlib import suppress
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ringfence.errors import ConfigError, RemoteProtocolError
from ringfence.limiter.limit import Algorithm, Calendar, Limit
from ringfence.rules import Domain, OnFailure, Open, Rule, RuleSet, rule_id
from ringfence.rules.loading.yaml_files import load_files, load_path

FILES = Path(__file__).parent / "files"
RULE_FILES = sorted(FILES.glob("*.yaml"))

names = st.text(max_size=4)
steps = st.tuples(st.text(min_size=1, max_size=3), st.none() | st.text(alphabet="xy*", max_size=3))
limits = st.sampled_from(
    [
        None,
        Limit.of_ns(0, 1),
        Limit.of_ns(2**32 - 1, 60 * 10**9, slots=6, soft_permille=125),
        Limit.of_ns(5, 10**9, Algorithm.TOKEN_BUCKET, burst=20),
        Limit.of_ns(5, 10**9, Algorithm.LEAKY_BUCKET, burst=20, queue=True),
        Limit.of_ns(
            5,
            86_400 * 10**9,
            Algorithm.FIXED_WINDOW,
            calendar=Calendar.DAY,
            timezone="Europe/Berlin",
        ),
        Limit.of_ns(9, 60 * 10**9, Algorithm.CONCURRENCY),
        Limit.of_ns(9, 60 * 10**9, Algorithm.FIXED_WINDOW, first_hit=True),
    ]
)
metadata = st.dictionaries(
    names,
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1, 1) | names,
        lambda nested: st.lists(nested, max_size=2) | st.dictionaries(names, nested, max_size=2),
        max_leaves=4,
    ),
    max_size=2,
)


@st.composite
def rows(draw, domain):
    path = tuple(draw(st.lists(steps, min_size=1, max_size=3)))
    scope = draw(st.sampled_from(["datacenter", "global", "split", "home"]))
    if draw(st.booleans()):
        return Open(path)
    return Rule(
        id=rule_id(domain, path),
        domain=domain,
        path=path,
        limit=draw(limits),
        unit=draw(names),
        name=draw(names),
        replaces=tuple(draw(st.lists(names, max_size=2))),
        shadow=draw(st.booleans()),
        quota=draw(st.booleans()),
        on_failure=draw(st.sampled_from(OnFailure)),
        scope=scope,
        home="eu" if scope == "home" else "",
        metadata=draw(metadata),
        details=draw(st.just(()) | st.just(("value",) * len(path))),
    )


@st.composite
def rule_sets(draw):
    domains = [
        Domain(
            name,
            tuple(draw(st.lists(rows(name), max_size=4, unique_by=lambda row: row.path))),
            draw(st.sampled_from(OnFailure)),
        )
        for name in draw(st.lists(st.text(min_size=1, max_size=3), max_size=2, unique=True))
    ]
    return RuleSet(domains, version=draw(st.integers(0, 2**63 - 1)))


@given(rules=rule_sets())
def test_rules_are_equal_after_serialization(rules):
    packed = msgpack.packb(rules.to_plain())
    received = RuleSet.from_plain(msgpack.unpackb(packed))

    assert received == rules
    assert received.version == rules.version


@pytest.mark.parametrize("file", RULE_FILES, ids=lambda file: file.stem)
def test_the_rules_of_every_file_are_equal_after_serialization(file):
    rules = load_path(file).rules

    assert RuleSet.from_plain(rules.to_plain()) == rules


def replace_at(plain, place, value):
    plain = copy.deepcopy(plain)
    parent = plain
    for index in place[:-1]:
        parent = parent[index]
    parent[place[-1]] = value
    return plain


ROW = (1, 0, 2, 0)
FIELDS = (*ROW, 1)
LIMIT = (*FIELDS, 0)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ((0,), -1),
        ((0,), 2**63),
        ((0,), True),
        ((0,), "1"),
        ((1,), None),
        ((1, 0), []),
        ((1, 0, 0), ""),
        ((1, 0, 0), 7),
        ((1, 0, 1), "never"),
        ((1, 0, 2), {}),
        ((1, 0, 2), [[[["k", None]], None], [[["k", None]], None]]),
        (ROW, [[], None]),
        (ROW, [[["k", "v"]] * 65, None]),
        (ROW, [[["", "v"]], None]),
        (ROW, [[["k"]], None]),
        (ROW, [[["k", 5]], None]),
        (ROW, [[["k", None]], None, 3]),
        (FIELDS, []),
        (LIMIT, []),
        ((*LIMIT, 0), -1),
        ((*LIMIT, 0), 1.0),
        ((*LIMIT, 1), 0),
        ((*LIMIT, 2), "best_effort"),
        ((*LIMIT, 3), 5),
        ((*LIMIT, 4), 1),
        ((*LIMIT, 5), 0),
        ((*LIMIT, 6), "hour"),
        ((*LIMIT, 7), None),
        ((*LIMIT, 8), -1),
        ((*FIELDS, 1), None),
        ((*FIELDS, 3), "by_user"),
        ((*FIELDS, 3), [1]),
        ((*FIELDS, 4), 0),
        ((*FIELDS, 6), "maybe"),
        ((*FIELDS, 7), "planet"),
        ((*FIELDS, 7), "home"),
        ((*FIELDS, 8), None),
        ((*FIELDS, 8), "eu"),
        ((*FIELDS, 9), []),
        ((*FIELDS, 9), {"a": b"bytes"}),
        ((*FIELDS, 9), {7: "x"}),
        ((*FIELDS, 10), ["loud"]),
        ((*FIELDS, 10), ["value", "value"]),
        ((*FIELDS, 10), ["share"]),
    ],
)
def test_malformed_rules_raise_remote_protocol_error(place, value):
    plain = load_path(FILES / "replaces.yaml").rules.to_plain()

    with pytest.raises(RemoteProtocolError, match="rules: "):
        RuleSet.from_plain(replace_at(plain, place, value))


@pytest.mark.parametrize("plain", [None, 7, "rules", b"", {}, [], [0], [0, [], 1], [0, [0]]])
def test_data_of_another_shape_raises_remote_protocol_error(plain):
    with pytest.raises(RemoteProtocolError):
        RuleSet.from_plain(plain)


def test_metadata_nested_too_deep_is_rejected():
    rules = load_path(FILES / "metadata.yaml").rules
    deep: dict[str, object] = {}
    for _ in range(40):
        deep = {"in": deep}
    rule = rules.rules()[1]

    with pytest.raises(ConfigError, match="32 deep"):
        RuleSet.of(replace(rule, metadata=deep)).to_plain()
    with pytest.raises(RemoteProtocolError, match="32 deep"):
        RuleSet.from_plain(replace_at(RuleSet.of(rule).to_plain(), (*FIELDS, 9), deep))


def test_metadata_that_cannot_be_encoded_is_rejected():
    (first, *_) = load_path(FILES / "metadata.yaml").rules.rules()

    with pytest.raises(ConfigError, match="got set"):
        RuleSet.of(replace(first, metadata={"tags": {1}})).to_plain()


@given(
    plain=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.binary(max_size=2),
        lambda nested: st.lists(nested, max_size=4) | st.dictionaries(st.text(max_size=2), nested),
        max_leaves=12,
    )
)
def test_random_data_is_accepted_or_raises_remote_protocol_error(plain):
    with suppress(RemoteProtocolError):
        RuleSet.from_plain(plain)


def test_merged_files_are_serialized_as_one_domain():
    rules = load_files(sorted((FILES / "merged").glob("[!.]*.y*ml")), merge=True).rules

    assert RuleSet.from_plain(rules.to_plain()).domains == ("test-domain",)
