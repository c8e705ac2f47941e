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


def rule_files_at(path: Path, *, merge: bool = False) -> RuleFiles:
    return RuleFiles(path, Algorithm.TOKEN_BUCKET, merge=merge)


def write_file(path: Path, text: str, *, mtime: int) -> Path:
    """Write a file and set its modification time, in seconds since the epoch."""
    path.write_text(text, "utf-8")
    os.utime(path, (mtime, mtime))
    return path


def amount_of(rules: RuleSet | None) -> int | None:
    assert rules is not None
    limit = rules.rules()[0].limit
    return None if limit is None else limit.amount


def load_if_changed(rule_files: RuleFiles) -> RuleSet | None:
    return rule_files.reload() if rule_files.has_changed() else None


def test_rules_are_read_with_the_default_algorithm(tmp_path: Path) -> None:
    rules = rule_files_at(write_file(tmp_path / "api.yaml", rules_of(5), mtime=1000)).load()

    [match] = rules.match("api", [Descriptor((("client", "x"),))])
    assert match is not None
    assert match.rule.limit is not None
    assert match.rule.limit.algorithm is Algorithm.TOKEN_BUCKET


def test_invalid_rules_are_rejected_at_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"api\.yaml"):
        rule_files_at(
            write_file(tmp_path / "api.yaml", "domain: api\nrules: 3\n", mtime=1000)
        ).load()
    for name in ("nowhere.yaml", "x" * 300):  # The second name is too long.
        with pytest.raises(ConfigError, match="cannot be read"):
            rule_files_at(tmp_path / name).load()


def test_two_files_can_share_a_domain_only_with_merge(tmp_path: Path) -> None:
    write_file(tmp_path / "a.yaml", rules_of(5), mtime=1000)
    other = rules_of(6).replace("client", "path")
    write_file(tmp_path / "b.yaml", other, mtime=1000)

    assert len(rule_files_at(tmp_path, merge=True).load().rules()) == 2
    with pytest.raises(ConfigError, match="already in"):
        rule_files_at(tmp_path).load()


def test_unchanged_files_are_not_reloaded(tmp_path: Path) -> None:
    rule_files = rule_files_at(write_file(tmp_path / "api.yaml", rules_of(5), mtime=1000))
    rule_files.load()

    assert load_if_changed(rule_files) is None


def test_a_changed_file_is_reloaded_once(tmp_path: Path) -> None:
    path = write_file(tmp_path / "api.yaml", rules_of(5), mtime=1000)
    rule_files = rule_files_at(path)
    rule_files.load()

    write_file(path, rules_of(6), mtime=1001)

    assert amount_of(load_if_changed(rule_files)) == 6
    assert load_if_changed(rule_files) is None


def test_a_change_that_keeps_time_and_size_is_detected(tmp_path: Path) -> None:
    """`cp --preserve` and `chmod` keep the modification time."""
    path = write_file(tmp_path / "api.yaml", rules_of(5), mtime=1000)
    rule_files = rule_files_at(path)
    rule_files.load()
    before = path.stat()
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # Its resolution is a few milliseconds.
        write_file(path, rules_of(6), mtime=1000)

    assert (path.stat().st_mtime, path.stat().st_size) == (before.st_mtime, before.st_size)
    assert amount_of(load_if_changed(rule_files)) == 6

    changed_at = path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == changed_at:
        path.chmod(0o600)
    assert rule_files.has_changed()


def test_added_and_removed_files_of_a_directory_are_detected(tmp_path: Path) -> None:
    write_file(tmp_path / "a.yaml", rules_of(5), mtime=1000)
    rule_files = rule_files_at(tmp_path)
    rule_files.load()

    write_file(tmp_path / "b.yaml", rules_of(6, "other"), mtime=1000)
    added = load_if_changed(rule_files)
    (tmp_path / "a.yaml").unlink()
    removed = load_if_changed(rule_files)

    assert added is not None
    assert removed is not None
    assert sorted(added.domains) == ["api", "other"]
    assert sorted(removed.domains) == ["other"]


def test_a_link_changed_to_another_directory_is_detected(tmp_path: Path) -> None:
    """Change all files at once by one rename, as orchestrators publish configuration."""
    for name, amount in (("one", 5), ("two", 6)):
        (tmp_path / name).mkdir()
        write_file(tmp_path / name / "api.yaml", rules_of(amount), mtime=1000)
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "..data").symlink_to(tmp_path / "one")
    (rules / "api.yaml").symlink_to("..data/api.yaml")
    rule_files = rule_files_at(rules)
    assert amount_of(rule_files.load()) == 5

    (rules / "..next").symlink_to(tmp_path / "two")
    (rules / "..next").rename(rules / "..data")

    assert amount_of(load_if_changed(rule_files)) == 6


def test_a_link_that_loses_its_target_keeps_the_rules_until_it_has_one_again(
    tmp_path: Path,
) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    write_file(rules / "other.yaml", rules_of(1, "other"), mtime=1000)
    write_file(tmp_path / "target", rules_of(5), mtime=1000)
    (rules / "api.yaml").symlink_to(tmp_path / "target")
    rule_files = rule_files_at(rules)
    rule_files.load()

    (tmp_path / "target").unlink()
    assert rule_files.has_changed()
    assert rule_files.reload() is None
    assert "api.yaml: cannot be read: no such file" in rule_files.refusal

    write_file(tmp_path / "target", rules_of(6), mtime=1001)
    loaded = load_if_changed(rule_files)

    assert loaded is not None
    assert sorted(loaded.domains) == ["api", "other"]


def test_links_without_a_target_hide_no_change_of_other_files(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f".{name}").symlink_to("nowhere")
    path = write_file(tmp_path / "api.yaml", rules_of(5), mtime=1000)
    for name in ("x", "y", "z"):
        (tmp_path / f".{name}").symlink_to("nowhere")
    rule_files = rule_files_at(tmp_path)
    rule_files.load()
    assert not rule_files.has_changed()

    write_file(path, rules_of(6), mtime=1001)

    assert amount_of(load_if_changed(rule_files)) == 6


def test_a_directory_that_cannot_be_read_is_a_change_and_keeps_the_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file(tmp_path / "api.yaml", rules_of(5), mtime=1000)
    rule_files = rule_files_at(tmp_path)
    rule_files.load()

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "iterdir", refuse)
        assert rule_files.has_changed()
        assert rule_files.reload() is None
    assert "permission denied" in rule_files.refusal

    assert amount_of(load_if_changed(rule_files)) == 5
    assert rule_files.refusal == ""


def test_rules_that_cannot_be_looked_up_leave_the_rules_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user of the node may have lost the access to a folder above the rules."""
    rule_files = rule_files_at(write_file(tmp_path / "api.yaml", rules_of(5), mtime=1000))
    rule_files.load()

    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", refuse)

    assert rule_files.reload() is None
    assert (rule_files.refusals, "permission denied" in rule_files.refusal) == (1, True)


@pytest.mark.parametrize(
    "bad", ["domain: api\nrules: 3\n", "not: [closed", "", "domain: api\nlimits: []"]
)
def test_a_bad_file_never_replaces_good_rules_and_is_reported_once(
    tmp_path: Path, bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_file(tmp_path / "api.yaml", rules_of(5), mtime=1000)
    rule_files = rule_files_at(path)
    rule_files.load()

    write_file(path, bad, mtime=1001)
    with caplog.at_level(logging.ERROR, "ringfence.node"):
        assert load_if_changed(rule_files) is None
        assert load_if_changed(rule_files) is None

    [record] = caplog.records
    assert "the old ones stay in force" in record.message
    assert "api.yaml" in record.message


def test_a_removed_file_leaves_the_rules_in_force(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_file(tmp_path / "api.yaml", rules_of(5), mtime=1000)
    rule_files = rule_files_at(path)
    rule_files.load()

    path.unlink()

    assert load_if_changed(rule_files) is None
    assert "the old ones stay in force" in caplog.text
    write_file(path, rules_of(6), mtime=1002)
    assert amount_of(load_if_changed(rule_files)) == 6


def test_a_corrected_file_takes_effect(tmp_path: Path) -> None:
    path = write_file(tmp_path / "api.yaml", rules_of(5), mtime=1000)
    rule_files = rule_files_at(path)
    rule_files.load()
    write_file(path, "domain: [", mtime=1001)
    load_if_changed(rule_files)

    write_file(path, rules_of(6), mtime=1002)

    assert amount_of(load_if_changed(rule_files)) == 6


def test_every_reload_has_a_newer_version_even_of_an_older_file(tmp_path: Path) -> None:
    """Roll back to an older file. Clients fetch rules only when the version is higher."""
    path = write_file(tmp_path / "api.yaml", rules_of(5), mtime=2000)
    rule_files = rule_files_at(path)
    first = rule_files.load()

    write_file(path, rules_of(6), mtime=1000)
    rolled_back = load_if_changed(rule_files)
    write_file(path, rules_of(7), mtime=1000)
    os.utime(path, ns=(1, 1000 * 10**9 + 1))  # Changed again within one millisecond.
    changed_again = load_if_changed(rule_files)

    assert rolled_back is not None
    assert changed_again is not None
    assert first.version < rolled_back.version < changed_again.version


def test_a_reload_on_request_needs_no_change(tmp_path: Path) -> None:
    rule_files = rule_files_at(write_file(tmp_path / "api.yaml", rules_of(5), mtime=1000))
    before = rule_files.load()

    again = rule_files.reload()

    assert amount_of(again) == 5
    assert again is not None
    assert again.version == before.version + 1


def test_warnings_are_logged_and_the_rules_are_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = rules_of(5) + "  - key: path\n    shadow_mode: true\n"
    rule_files = rule_files_at(write_file(tmp_path / "api.yaml", text, mtime=1000))

    rules = rule_files.load()

    assert len(rules.rules()) == 1
    assert "api.yaml" in caplog.text


def test_rules_larger_than_a_message_are_refused_with_a_remedy(tmp_path: Path) -> None:
    rows = "".join(
        f"  - key: client\n    value: {'v' * 60_000}{number}\n"
        "    rate_limit: {unit: minute, requests_per_unit: 5}\n"
        for number in range(20)
    )
    path = write_file(tmp_path / "api.yaml", f"domain: api\ndescriptors:\n{rows}", mtime=1000)

    with pytest.raises(ConfigError, match=r"too many to be sent to clients.*use wildcards"):
        rule_files_at(path).load()


def test_refusals_are_counted(tmp_path: Path) -> None:
    path = write_file(tmp_path / "api.yaml", rules_of(5), mtime=1000)
    rule_files = rule_files_at(path)
    rule_files.load()

    write_file(path, "domain: [", mtime=2000)
    assert [load_if_changed(rule_files), load_if_changed(rule_files)] == [None, None]
    assert rule_files.refusals == 1
    assert "api.yaml" in rule_files.refusal
    assert rule_files.reload() is None
    assert rule_files.refusals == 2


def test_wait_for_change_returns_after_a_change_or_a_stop_request(tmp_path: Path) -> None:
    path = write_file(tmp_path / "api.yaml", rules_of(5), mtime=1000)
    rule_files, stopped = rule_files_at(path), Event()
    poll = partial(stopped.wait, 0.005)
    rule_files.load()
    first_watcher = Thread(target=rule_files.wait_for_change, args=(poll,), daemon=True)
    first_watcher.start()
    first_watcher.join(0.05)
    assert first_watcher.is_alive()

    write_file(path, rules_of(6), mtime=1001)
    first_watcher.join(5)

    assert not first_watcher.is_alive()
    assert amount_of(rule_files.reload()) == 6
    second_watcher = Thread(target=rule_files.wait_for_change, args=(poll,), daemon=True)
    second_watcher.start()
    stopped.set()
    second_watcher.join(5)
    assert not second_watcher.is_alive()
