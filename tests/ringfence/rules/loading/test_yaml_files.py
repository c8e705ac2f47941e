import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import ConfigError
from ringfence.limiter.limit import NS_PER_SECOND, Limit
from ringfence.rules import Descriptor
from ringfence.rules.loading.yaml_files import (
    MAX_DEPTH,
    MAX_FILE_BYTES,
    RuleFileError,
    load_files,
    load_path,
    load_text,
)

FILES = Path(__file__).parents[1] / "files"
EXAMPLES = Path(__file__).parents[4] / "examples" / "rules"
GOOD = "domain: d\ndescriptors:\n  - {key: k, rate_limit: {unit: minute, requests_per_unit: 5}}\n"
LIMIT = "{unit: minute, requests_per_unit: 5}"


def problems_of(call, *arguments, **settings):
    with pytest.raises(RuleFileError) as caught:
        call(*arguments, **settings)
    assert isinstance(caught.value, ConfigError)
    return [str(problem) for problem in caught.value.problems]


def problem_of(text):
    (problem,) = problems_of(load_text, text, "rules.yaml")
    return problem


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def set_time(path, seconds):
    os.utime(path, ns=(seconds * NS_PER_SECOND, seconds * NS_PER_SECOND))


def test_the_example_rules_load_without_a_warning():
    loaded = load_path(EXAMPLES)

    assert loaded.rules.domains == ("api", "log", "web")
    assert loaded.warnings == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "rules.yaml: the file is empty; write `domain:` and `descriptors:`"),
        ("# only a comment\n", "rules.yaml: the file is empty"),
        ("---\n---\n", "rules.yaml:2: a second document begins"),
        (GOOD + "---\ndomain: e\n", "rules.yaml:4: a second document begins"),
        ("domain: d\ndescriptors: [\n", "rules.yaml:3: not YAML"),
        ("domain: d\n\tdescriptors: []\n", "rules.yaml:2: not YAML"),
        ("domain: 'd\n", "rules.yaml:2: not YAML"),
        ("domain: d\nbell: \x07\n", "rules.yaml:2: control character U+0007; remove it"),
        ("domain: \ud800\n", "rules.yaml:1: control character U+D800"),
        ('domain: "\\ud800"\n', "rules.yaml:1: "),
        ("domain: *where\n", "rules.yaml:1: alias *where must refer to a complete value above it"),
        ("domain: &d [*d]\n", "rules.yaml:1: alias *d must refer to a complete value above it"),
        ("domain: !!python/object:os.system x\n", "rules.yaml:1: tag"),
        (
            "domain: !secret x\n",
            "rules.yaml:1: tag !secret is not supported; drop the tag",
        ),
        ("domain: d\ndescriptors: !!set {a, b}\n", "rules.yaml:2: tag"),
        ("domain: " + "[" * 5000, f"rules.yaml:1: nested more than {MAX_DEPTH} deep"),
        ("- domain: d\n", "rules.yaml:1: this rule file must be a map, got a list"),
        ("just text\n", "rules.yaml:1: this rule file must be a map, got the text 'just text'"),
        ("<<: 5\ndomain: d\n", "rules.yaml:1: `<<` must be given a map"),
    ],
)
def test_a_file_with_invalid_or_unsupported_yaml_is_rejected(text, problem):
    assert problem_of(text).startswith(problem)


@pytest.mark.parametrize(
    ("lines", "line", "remedy"),
    [
        ("domain: d\ndescriptors:\n\t- key: a\n", 3, "indent by spaces instead of the tab"),
        ("domain: d\nrate_limit:\n\t  unit: day\n", 3, "indent by spaces instead of the tab"),
        ("domain: d\nrate_limit:\n  a: b\n\t  unit: day\n", 4, "indent by spaces instead of the t"),
        ("domain: d\nvalue: *\n", 2, "quote values that begin with *"),
        ("domain: d # ü\U0001f600\nvalue: *.com\n", 2, "quote values that begin with *"),
        ("domain: d\nvalue: & b\n", 2, "quote values that begin with &"),
        ("domain: d\nvalue: @a\n", 2, "quote values that begin with @"),
        ("domain: d\nvalue: `a`\n", 2, "quote values that begin with `"),
        ("domain: d\nvalue: %a\n", 2, "quote values that begin with %"),
        ("domain: d\nvalue: a: b\n", 2, "check indentation (spaces only), colons and quotes"),
        ("domain: 'd", 1, "check indentation (spaces only), colons and quotes"),
    ],
)
def test_a_syntax_error_has_a_remedy_for_the_character_at_its_place(lines, line, remedy):
    problem = problem_of(lines)

    assert problem.startswith(f"rules.yaml:{line}: not YAML: ")
    assert f"; {remedy}" in problem


def test_aliases_that_multiply_are_rejected_before_they_are_expanded():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]

    assert "more than 500000 values" in problem_of("\n".join(lines))


def test_aliases_that_nest_are_rejected_before_they_are_expanded():
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 200)]

    assert f"nested more than {MAX_DEPTH} deep" in problem_of("\n".join(lines))


def test_anchors_aliases_and_merge_keys_are_understood():
    rules = load_text(
        f"""
        domain: d
        descriptors:
          - {{key: a, rate_limit: &limit {LIMIT}}}
          - {{key: b, rate_limit: *limit}}
          - {{key: c, rate_limit: {{<<: *limit, requests_per_unit: 9}}}}
          - {{key: e, rate_limit: {{<<: [{{unit: hour}}, *limit]}}}}
        """
    ).rules

    amounts = [(rule.limit.amount, rule.unit) for rule in rules.rules()]
    assert amounts == [(5, "minute"), (5, "minute"), (9, "minute"), (5, "hour")]


def test_a_duplicate_key_beside_a_merge_key_is_rejected():
    text = "domain: d\ndescriptors:\n- &a {key: a}\n- {<<: *a, key: b, key: c}\n"

    assert "key 'key' is given twice" in problem_of(text)


def test_a_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path):
    path = write(tmp_path, "a.yaml", b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())

    assert load_path(path).rules.domains == ("d",)


def test_bytes_that_are_not_utf_8_are_reported_with_their_line(tmp_path):
    path = write(tmp_path, "a.yaml", b"domain: d\n# caf\xe9\n")

    (problem,) = problems_of(load_path, path)

    assert problem == f"{path}:2: byte 0xe9 is not UTF-8; save the file as UTF-8"


def test_a_file_that_is_too_large_is_refused(tmp_path):
    path = write(tmp_path, "a.yaml", GOOD + "#" * MAX_FILE_BYTES)

    (problem,) = problems_of(load_path, path)

    assert problem == f"{path}: the file is larger than 4 MiB; split it"


def test_a_missing_file_is_refused(tmp_path):
    (problem,) = problems_of(load_path, tmp_path / "none.yaml")

    assert problem.startswith(f"{tmp_path / 'none.yaml'}: cannot be read: no such file")


def test_a_directory_among_files_is_refused(tmp_path):
    (problem,) = problems_of(load_files, [tmp_path])

    assert "is a directory" in problem


def test_a_directory_without_rule_files_is_refused(tmp_path):
    write(tmp_path, "notes.txt", "domain: d")
    write(tmp_path, ".hidden.yaml", "domain: d")

    (problem,) = problems_of(load_path, tmp_path)

    assert problem == f"{tmp_path}: the directory contains no rule file; add a *.yaml file"


def test_all_problems_of_all_files_are_reported_at_once(tmp_path):
    first = write(tmp_path, "a.yaml", "domain: d\ndescriptors:\n- {ky: a}\n- {key: b, valu: c}\n")
    second = write(tmp_path, "b.yaml", "domain: [\n")
    third = tmp_path / "c.yaml"

    problems = problems_of(load_files, [first, second, third])

    files = [problem.split(":")[0] for problem in problems]
    assert sorted(set(files)) == [str(first), str(second), str(third)]
    assert files.count(str(first)) == 3
    assert sum("did you mean" in problem for problem in problems) == 2


def test_problems_of_all_kinds_are_reported_by_file_and_line(tmp_path):
    write(tmp_path, "a.yaml", "domain: d\ndescriptors:\n- {key: b, valu: c}\n- {ky: a}\n")
    write(tmp_path, "b.yaml", "domain: [\n")
    (tmp_path / "c.yaml").write_bytes(b"domain: \xff")

    problems = problems_of(load_path, tmp_path)

    places = [tuple(problem.split(":")[:2]) for problem in problems]
    assert [file for file, _ in places] == [str(tmp_path / f"{x}.yaml") for x in "aaabc"]
    assert places == sorted(places)


def test_a_message_is_cut_after_50_lines_while_the_error_has_all_problems():
    text = "domain: d\ndescriptors:\n" + "- {key: a, odd: 1}\n" * 200

    with pytest.raises(RuleFileError) as caught:
        load_text(text)

    assert len(caught.value.problems) > 200
    assert str(caught.value).count("\n") == 50
    assert "more" in str(caught.value).splitlines()[-1]


def test_a_directory_is_read_in_the_order_of_names_without_its_dot_files(tmp_path):
    for name in ("b.yml", "a.yaml", ".c.yaml", "d.txt"):
        write(tmp_path, name, GOOD.replace("domain: d", f"domain: {name[0]}"))
    (tmp_path / "e.yaml").mkdir()

    assert load_path(tmp_path).rules.domains == ("a", "b")


def test_a_directory_of_symbolic_links_as_in_container_mounts_is_read(tmp_path):
    (tmp_path / "..2026").mkdir()
    write(tmp_path / "..2026", "a.yaml", GOOD)
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")

    assert load_path(tmp_path).rules.domains == ("d",)


def test_a_link_without_a_target_that_is_named_like_a_rule_file_is_refused(tmp_path):
    write(tmp_path, "a.yaml", GOOD)
    (tmp_path / ".#a.yaml").symlink_to("user@host.1")
    (tmp_path / "notes").symlink_to("missing")
    assert load_path(tmp_path).rules.domains == ("d",)

    (tmp_path / "web.yaml").symlink_to("missing")
    (problem,) = problems_of(load_path, tmp_path)

    assert problem.startswith(f"{tmp_path / 'web.yaml'}: cannot be read: no such file or directory")


def test_links_to_directories_and_removed_files_are_skipped(tmp_path, monkeypatch):
    write(tmp_path, "a.yaml", GOOD)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder.yaml").symlink_to("folder")
    listed = [*tmp_path.iterdir(), tmp_path / "removed.yaml"]
    monkeypatch.setattr(Path, "iterdir", lambda self: iter(listed))

    assert load_path(tmp_path).rules.domains == ("d",)


def test_one_domain_in_two_files_needs_merging(tmp_path):
    first = write(tmp_path, "a.yaml", GOOD)
    second = write(tmp_path, "b.yaml", GOOD.replace("key: k", "key: l"))

    (problem,) = problems_of(load_path, tmp_path)

    assert problem.startswith(f"{second}:1: d: domain 'd' is already in {first}; merge the two")
    assert len(load_path(tmp_path, merge=True).rules.rules()) == 2


def test_merged_files_may_not_repeat_a_descriptor(tmp_path):
    first, second = write(tmp_path, "a.yaml", GOOD), write(tmp_path, "b.yaml", "\n" + GOOD)

    (problem,) = problems_of(load_path, tmp_path, merge=True)

    assert problem.startswith(
        f"{second}:4: d > k: the same key and value are already in line 3 of {first}; keep one"
    )


def test_defaults_apply_only_to_their_own_file(tmp_path):
    write(tmp_path, "a.yaml", GOOD + "defaults: {algorithm: token_bucket}\n")
    write(tmp_path, "b.yaml", GOOD.replace("key: k", "key: l"))

    rules = load_path(tmp_path, merge=True).rules.rules()

    assert [rule.limit.algorithm.value for rule in rules] == ["token_bucket", "sliding_window"]


def test_files_of_one_domain_must_agree_on_the_failure_policy(tmp_path):
    write(tmp_path, "a.yaml", GOOD + "defaults: {on_failure: deny}\n")
    second = write(
        tmp_path, "b.yaml", GOOD.replace("key: k", "key: l") + "defaults: {on_failure: local}\n"
    )

    (problem,) = problems_of(load_path, tmp_path, merge=True)

    assert problem.startswith(f"{second}:4: d: on_failure is local here but deny in an earlier")


def test_the_version_is_the_time_of_the_latest_change(tmp_path):
    first = write(tmp_path, "a.yaml", GOOD)
    second = write(tmp_path, "b.yaml", GOOD.replace("domain: d", "domain: e"))
    set_time(first, 2_000_000_001)
    set_time(second, 2_000_000_003)
    set_time(tmp_path, 2_000_000_002)

    assert load_files([first, second]).rules.version == 2_000_000_003_000
    assert load_path(first).rules.version == 2_000_000_001_000
    assert load_path(tmp_path).rules.version == 2_000_000_003_000

    set_time(tmp_path, 2_000_000_004)
    assert load_path(tmp_path).rules.version == 2_000_000_004_000


def test_text_has_version_zero():
    assert load_text(GOOD).rules.version == 0


def test_a_loaded_limit_matches_its_requests():
    (found,) = load_text(GOOD).rules.match("d", [Descriptor((("k", "v"),))])

    assert found.rule.limit == Limit.of_ns(5, 60 * NS_PER_SECOND)


@given(text=st.text(alphabet="dk: -[]{}&*!|>'\"\n\t,#?x0.<", max_size=60))
def test_any_text_loads_or_raises_rule_file_error(text):
    try:
        loaded = load_text("domain: d\ndescriptors:\n" + text)
    except RuleFileError as error:
        assert error.problems  # noqa: PT017 - most texts are rejected; none may raise another error
    else:
        assert loaded.rules.domains == ("d",)


@pytest.mark.parametrize("can_be_read", [False, True])
def test_a_file_whose_metadata_cannot_be_read_is_not_skipped(
    can_be_read: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(f"domain: {name}\ndescriptors: []\n", "utf-8")

    def broken(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(path: Path, *arguments: object, **named: object) -> object:
            if path.name == "b.yaml":
                raise OSError(errno.ESTALE, "Stale file handle")
            return call(path, *arguments, **named)

        return called

    for name in ("stat", "lstat") if can_be_read else ("stat", "lstat", "open"):
        monkeypatch.setattr(Path, name, broken(getattr(Path, name)))
    if can_be_read:
        assert load_path(tmp_path).rules.knows_domain("b")
    else:
        with pytest.raises(RuleFileError, match="stale file handle"):
            load_path(tmp_path)
