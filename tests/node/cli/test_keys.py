"""Command `ringfence keys`."""

import stat
from pathlib import Path

import pytest

from tests.invocation import Run, refused


def test_keys_are_made_and_the_next_steps_shown(run: Run, tmp_path: Path) -> None:
    directory = tmp_path / "keys"

    ran = run("keys", "new", directory, "--name", "a.example.org", "--address", "10.0.0.1")

    assert ran.status == 0
    assert f'set keys = "{directory}"' in ran.out
    assert "app.token" in ran.out
    assert stat.S_IMODE((directory / "node.key").stat().st_mode) == 0o600
    assert "exists" in refused(run("keys", "new", directory))


def test_keys_of_single_nodes_are_made(run: Run, tmp_path: Path) -> None:
    directory = tmp_path / "keys"

    made = run("keys", "new", directory, "--node", "a", "--node", "b", "--json")
    added = run("keys", "add-node", directory, "c", "--json")

    assert {"nodes/a.pem", "nodes/a.key", "nodes/b.pem", "nodes/b.key"} <= set(made.row["files"])
    assert "node.pem" not in made.row["files"]
    assert added.row["files"] == ["nodes/c.pem", "nodes/c.key"]
    assert "give --replace" in refused(run("keys", "add-node", directory, "c"))
    renewed = run("keys", "add-node", directory, "c", "--replace")
    assert f"wrote {directory}/nodes/c.pem" in renewed.out


def test_a_machine_reads_which_files_were_made(run: Run, tmp_path: Path) -> None:
    row = run("keys", "new", tmp_path / "keys", "--token", "web:check", "--json").row

    assert sorted(row["files"]) == sorted(path.name for path in (tmp_path / "keys").iterdir())
    assert "web.token" in row["files"]


def test_a_clusters_keys_grow_and_are_listed(run: Run, tmp_path: Path) -> None:
    directory = tmp_path / "keys"
    run("keys", "new", directory, "--node", "a", "--days", "20")

    added = run("keys", "add-token", directory, "batch:check", "--domain", "jobs")
    shown = run("keys", "show", directory)
    revoked = run("keys", "revoke-token", directory, "app")
    renewed = run("keys", "renew", directory, "--days", "90")
    row = run("keys", "show", directory, "--json").row

    assert added.out == (
        f"wrote {directory}/tokens.toml\nwrote {directory}/batch.token\n"
        "copy tokens.toml to every node and send each a SIGHUP\n"
    )
    for words in ("nodes/a.pem", "a.node.ringfence.internal", " 19 ", "batch", "jobs", "operator"):
        assert words in shown.out
    assert f"removed app from {directory}/tokens.toml\n" in revoked.out
    assert f"deleted {directory}/app.token\n" in revoked.out
    assert f"wrote {directory}/nodes/a.key\n" in renewed.out
    assert [each["name"] for each in row["tokens"]] == ["batch", "operator"]
    assert [each["file"] for each in row["certificates"]] == ["ca.pem", "nodes/a.pem"]
    assert row["certificates"][1]["days_left"] == 89
    assert "known are batch, operator" in refused(run("keys", "revoke-token", directory, "app"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--address", "a.example.org"], "give host names by --name"),
        (["--token", "app"], "NAME:SCOPE"),
        (["--token", "app:chekc"], "scopes are check, refund, reset, observe"),
        (["--days", "0"], "--days"),
    ],
)
def test_wrong_wishes_for_keys_are_named(
    run: Run, tmp_path: Path, words: list[str], said: str
) -> None:
    assert said in refused(run("keys", "new", tmp_path / "keys", *words))
    assert not (tmp_path / "keys").exists()


def test_each_step_of_a_rotation_names_the_next_one(run: Run, tmp_path: Path) -> None:
    directory = tmp_path / "keys"
    run("keys", "new", directory)

    last_lines = {
        step: run("keys", "rotate", directory, step).out.splitlines()[-1]
        for step in ("add", "use", "drop")
    }

    copy = "copy it to every node and send each a SIGHUP"
    assert last_lines == {
        "add": f"{copy}; then: ringfence keys rotate {directory} use",
        "use": f"{copy}; then: ringfence keys rotate {directory} drop",
        "drop": copy,
    }
    assert run("keys", "rotate", directory, "add", "--json").row["next"] == "use"
