"""P12: a stateless reset of one node does not end connections to another node."""

import socket
from pathlib import Path

from node.config.key_files import write_keys
from tests.node.end_to_end.test_serve import started

STRAY = b"\x40" + bytes(range(8)) + bytes(60)
"""A packet with a short header and an unknown connection ID."""


def reset_token_of(port: int) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(20)
        sock.sendto(STRAY, ("127.0.0.1", port))
        return sock.recv(2048)[-16:]


def test_nodes_with_the_same_key_folder_have_different_reset_tokens(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys", [], [], ["app:check"], 30)
    flags = {name: ["--keys", str(tmp_path / "keys"), "--name", name] for name in "ab"}
    with started(tmp_path, flags) as running:
        tokens = [reset_token_of(running[name].port) for name in ("a", "b", "a")]

        assert tokens[0] != tokens[1]
        assert tokens[0] == tokens[2]
    with started(tmp_path, {"a": flags["a"]}) as running:
        assert reset_token_of(running["a"].port) == tokens[0], "unchanged by a restart"
