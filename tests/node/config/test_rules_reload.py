import logging
import os
from functools import partial
from pathlib import Path
from threading import Event, Thread

import pytest

from node.config.rules_reload import RuleFiles
from ringfence.errors import ConfigError
from ringfence.limiter import Algorithm
from ringfence.rules import Descriptor, RuleSet


def rules_of(amount: int, domain: str = "api") -> str:
    return (
        f"domain: {domain}\ndescriptors:\n  - key: client\n"
        f"    rate_limit: {{unit: minute, requests_per_unit: {amount}}}\n"
    )


def book(path: Path, *, merge: bool = False) -> RuleFiles:
    return RuleFiles(path, Algorithm.TOKEN_BUCKET, merge=merge)


def written(path: Path, text: str, *, at: int) -> Path:
    """Write a file as of `at` seconds since the epoch."""
    path.write_text(text, "utf-8")
    os.utime(path, (at, at))
    return path


def amount_of(rules: RuleSet | None) -> int | None:
    assert rules is not None
    limit = rules.rules()[0].limit
    return None if limit is None else limit.amount


def load_if_changed(rulebook: RuleFiles) -> RuleSet | None:
    return rulebook.reload() if rulebook.has_changed() else None


def test_rules_are_read_with_the_default_algorithm(tmp_path: Path) -> None:
    rules = book(written(tmp_path / "api.yaml", rules_of(5), at=1000)).load()

    [match] = rules.match("api", [Descriptor((("client", "x"),))])
    assert match is not None
    assert match.rule.limit is not None
    assert match.rule.limit.algorithm is Algorithm.TOKEN_BUCKET


def test_wrong_rules_are_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"api\.yaml"):
        book(written(tmp_path / "api.yaml", "domain: api\nrules: 3\n", at=1000)).load()
    with pytest.raises(ConfigError, match="cannot be read"):
        book(tmp_path / "nowhere.yaml").load()


def test_two_files_can_share_a_domain_only_with_merge(tmp_path: Path) -> None:
    written(tmp_path / "a.yaml", rules_of(5), at=1000)
    other = rules_of(6).replace("client", "path")
    written(tmp_path / "b.yaml", other, at=1000)

    assert len(book(tmp_path, merge=True).load().rules()) == 2
    with pytest.raises(ConfigError, match="already in"):
        book(tmp_path).load()


def test_nothing_is_read_again_while_nothing_has_changed(tmp_path: Path) -> None:
    rulebook = book(written(tmp_path / "api.yaml", rules_of(5), at=1000))
    rulebook.load()

    assert load_if_changed(rulebook) is None


def test_a_written_file_is_read_again_once(tmp_path: Path) -> None:
    path = written(tmp_path / "api.yaml", rules_of(5), at=1000)
    rulebook = book(path)
    rulebook.load()

    written(path, rules_of(6), at=1001)

    assert amount_of(load_if_changed(rulebook)) == 6
    assert load_if_changed(rulebook) is None


def test_a_file_added_to_the_directory_and_one_removed_are_noticed(tmp_path: Path) -> None:
    written(tmp_path / "a.yaml", rules_of(5), at=1000)
    rulebook = book(tmp_path)
    rulebook.load()

    written(tmp_path / "b.yaml", rules_of(6, "other"), at=1000)
    added = load_if_changed(rulebook)
    (tmp_path / "a.yaml").unlink()
    removed = load_if_changed(rulebook)

    assert added is not None
    assert removed is not None
    assert sorted(added.domains) == ["api", "other"]
    assert sorted(removed.domains) == ["other"]


def test_a_link_swapped_to_another_directory_is_noticed(tmp_path: Path) -> None:
    """As orchestrators publish configuration: all files change at once, by one rename."""
    for name, amount in (("one", 5), ("two", 6)):
        (tmp_path / name).mkdir()
        written(tmp_path / name / "api.yaml", rules_of(amount), at=1000)
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "..data").symlink_to(tmp_path / "one")
    (rules / "api.yaml").symlink_to("..data/api.yaml")
    rulebook = book(rules)
    assert amount_of(rulebook.load()) == 5

    (rules / "..next").symlink_to(tmp_path / "two")
    (rules / "..next").rename(rules / "..data")

    assert amount_of(load_if_changed(rulebook)) == 6


@pytest.mark.parametrize(
    "bad", ["domain: api\nrules: 3\n", "not: [closed", "", "domain: api\nlimits: []"]
)
def test_a_bad_file_never_replaces_good_rules_and_is_reported_once(
    tmp_path: Path, bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "api.yaml", rules_of(5), at=1000)
    rulebook = book(path)
    rulebook.load()

    written(path, bad, at=1001)
    with caplog.at_level(logging.ERROR, "ringfence.node"):
        assert load_if_changed(rulebook) is None
        assert load_if_changed(rulebook) is None

    [record] = caplog.records
    assert "the old ones stay in force" in record.message
    assert "api.yaml" in record.message


def test_a_removed_file_leaves_the_rules_in_force(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "api.yaml", rules_of(5), at=1000)
    rulebook = book(path)
    rulebook.load()

    path.unlink()

    assert load_if_changed(rulebook) is None
    assert "the old ones stay in force" in caplog.text
    written(path, rules_of(6), at=1002)
    assert amount_of(load_if_changed(rulebook)) == 6


def test_a_mended_file_comes_into_force(tmp_path: Path) -> None:
    path = written(tmp_path / "api.yaml", rules_of(5), at=1000)
    rulebook = book(path)
    rulebook.load()
    written(path, "domain: [", at=1001)
    load_if_changed(rulebook)

    written(path, rules_of(6), at=1002)

    assert amount_of(load_if_changed(rulebook)) == 6


def test_every_reload_has_a_newer_version_even_of_an_older_file(tmp_path: Path) -> None:
    """Clients fetch rules when they hear of a higher version; a roll-back must reach them too."""
    path = written(tmp_path / "api.yaml", rules_of(5), at=2000)
    rulebook = book(path)
    first = rulebook.load()

    written(path, rules_of(6), at=1000)
    rolled_back = load_if_changed(rulebook)
    written(path, rules_of(7), at=1000)
    os.utime(path, ns=(1, 1000 * 10**9 + 1))  # Changed again within one millisecond.
    again = load_if_changed(rulebook)

    assert rolled_back is not None
    assert again is not None
    assert first.version < rolled_back.version < again.version


def test_a_reload_on_request_needs_no_change(tmp_path: Path) -> None:
    rulebook = book(written(tmp_path / "api.yaml", rules_of(5), at=1000))
    rulebook.load()

    assert amount_of(rulebook.reload()) == 5


def test_warnings_are_logged_and_keep_nothing_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = rules_of(5) + "  - key: path\n    shadow_mode: true\n"
    rulebook = book(written(tmp_path / "api.yaml", text, at=1000))

    rules = rulebook.load()

    assert len(rules.rules()) == 1
    assert "api.yaml" in caplog.text


def test_rules_larger_than_a_message_are_refused_with_a_remedy(tmp_path: Path) -> None:
    rows = "".join(
        f"  - key: client\n    value: {'v' * 60_000}{number}\n"
        "    rate_limit: {unit: minute, requests_per_unit: 5}\n"
        for number in range(20)
    )
    path = written(tmp_path / "api.yaml", f"domain: api\ndescriptors:\n{rows}", at=1000)

    with pytest.raises(ConfigError, match=r"too many to be sent to clients.*use wildcards"):
        book(path).load()


def test_refusals_are_counted(tmp_path: Path) -> None:
    path = written(tmp_path / "api.yaml", rules_of(5), at=1000)
    rulebook = book(path)
    rulebook.load()

    written(path, "domain: [", at=2000)
    assert [load_if_changed(rulebook), load_if_changed(rulebook)] == [None, None]
    assert rulebook.refusals == 1
    assert "api.yaml" in rulebook.refusal
    assert rulebook.reload() is None
    assert rulebook.refusals == 2


def test_a_thread_that_waits_for_a_change_ends_with_it_or_when_asked(tmp_path: Path) -> None:
    path = written(tmp_path / "api.yaml", rules_of(5), at=1000)
    rulebook, ended = book(path), Event()
    look = partial(ended.wait, 0.005)
    rulebook.load()
    waiting = Thread(target=rulebook.wait_for_change, args=(look,), daemon=True)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()

    written(path, rules_of(6), at=1001)
    waiting.join(5)

    assert not waiting.is_alive()
    assert amount_of(rulebook.reload()) == 6
    other = Thread(target=rulebook.wait_for_change, args=(look,), daemon=True)
    other.start()
    ended.set()
    other.join(5)
    assert not other.is_alive()
