"""Command `ringfence keys`."""

import stat
from pathlib import Path
from urllib.parse import unquote

import pytest

from ringfence.client.url import parse_url
from tests.invocation import Run, refused


def test_keys_are_created_and_the_next_steps_are_shown(run: Run, tmp_path: Path) -> None:
    directory = tmp_path / "keys"

    result = run("keys", "new", directory, "--name", "a.example.org", "--address", "10.0.0.1")

    assert result.status == 0
    assert f'set keys = "{directory}"' in result.out
    assert "app.token" in result.out
    assert stat.S_IMODE((directory / "node.key").stat().st_mode) == 0o600
    assert "exists" in refused(run("keys", "new", directory))


def test_keys_of_single_nodes_are_created(run: Run, tmp_path: Path) -> None:
    directory = tmp_path / "keys"

    created = run("keys", "new", directory, "--node", "a", "--node", "b", "--json")
    added = run("keys", "add-node", directory, "c", "--json")

    assert {"nodes/a.pem", "nodes/a.key", "nodes/b.pem", "nodes/b.key"} <= set(created.row["files"])
    assert "node.pem" not in created.row["files"]
    assert added.row["files"] == ["nodes/c.pem", "nodes/c.key"]
    assert "give --replace" in refused(run("keys", "add-node", directory, "c"))
    renewed = run("keys", "add-node", directory, "c", "--replace")
    assert f"wrote {directory}/nodes/c.pem" in renewed.out


def test_json_output_lists_the_created_files(run: Run, tmp_path: Path) -> None:
    row = run("keys", "new", tmp_path / "keys", "--token", "web:check", "--json").row

    assert sorted(row["files"]) == sorted(path.name for path in (tmp_path / "keys").iterdir())
    assert "web.token" in row["files"]


def test_a_directory_without_keys_is_not_listed(run: Run, tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"

    for directory, got in ((tmp_path, "none"), (missing, "no such directory")):
        error = refused(run("keys", "show", directory))
        assert f"{directory} must hold certificates, got {got}; `ringfence keys new`" in error


def test_keys_of_a_cluster_can_be_added_listed_revoked_and_renewed(
    run: Run, tmp_path: Path
) -> None:
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
    ("words", "expected"),
    [
        (["--address", "a.example.org"], "give host names by --name"),
        (["--token", "app"], "NAME:SCOPE"),
        (["--token", "app:chekc"], "scopes are check, refund, reset, observe"),
        (["--days", "0"], "--days"),
    ],
)
def test_invalid_options_for_keys_are_reported(
    run: Run, tmp_path: Path, words: list[str], expected: str
) -> None:
    assert expected in refused(run("keys", "new", tmp_path / "keys", *words))
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


@pytest.mark.parametrize("name", ["keys", "a&b"])
def test_all_written_files_and_the_next_steps_are_printed(
    run: Run, tmp_path: Path, name: str
) -> None:
    directory = tmp_path / name
    result = run("keys", "new", directory)

    *wrote, nodes, clients = result.out.splitlines()

    assert sorted(wrote) == sorted(f"wrote {path}" for path in directory.iterdir())
    assert nodes == f'nodes: set keys = "{directory}"'
    address = clients.removeprefix('clients: "').removesuffix('"')
    assert str(parse_url(address.replace("PORT", "7")).ca) == f"{directory}/ca.pem"
    assert unquote(address).endswith(f"&token_file={directory}/app.token")


def test_a_key_directory_must_not_be_a_file(run: Run, tmp_path: Path) -> None:
    directory, file = tmp_path / "keys", tmp_path / "file"
    file.touch()
    for verb, *words in (
        *(["new"], ["add-node", "b"], ["renew"], ["add-token", "x:check"], ["revoke-token", "x"]),
        *(["show"], ["rotate", "add"]),
    ):
        assert run("keys", verb, directory, *words).status == 0
        assert "is a file" in refused(run("keys", verb, file, *words))


def test_certificates_are_valid_for_1_to_3650_days_and_825_by_default(
    run: Run, tmp_path: Path
) -> None:
    def days_left(*words: object) -> int:
        directory = tmp_path / f"keys{len(words)}{words[-1:]}"
        assert run("keys", "new", directory, "--node", "a", *words).status == 0
        certificates = run("keys", "show", directory, "--json").row["certificates"]
        return int(certificates[1]["days_left"]) + 1

    assert [days_left(), days_left("--days", 1), days_left("--days", 3650)] == [825, 1, 3650]
    assert "--days" in refused(run("keys", "new", tmp_path / "long", "--days", 3651))


def test_the_certificates_of_several_named_nodes_are_renewed(run: Run, tmp_path: Path) -> None:
    directory = tmp_path / "keys"
    run("keys", "new", directory, *("--node", "a"), *("--node", "b"), *("--node", "c"))

    assert run("keys", "renew", directory, "a", "c", "--json").row["files"] == [
        *("nodes/a.pem", "nodes/a.key", "nodes/c.pem", "nodes/c.key")
    ]
    assert run("keys", "renew", directory, "b").out.splitlines() == [
        f"wrote {directory}/nodes/b.pem",
        f"wrote {directory}/nodes/b.key",
        "copy each pair to its node and send the node a SIGHUP",
    ]
