"""The gRPC port against h2spec, a conformance suite of HTTP/2 and HPACK."""

import subprocess
from pathlib import Path

from tests.programs import require
from tests.security.gateway.http2_client import lone_gateway


def test_every_case_of_h2spec_passes_and_none_is_skipped(tmp_path: Path) -> None:
    program = require("h2spec")
    with lone_gateway(tmp_path) as gate:
        result = subprocess.run(
            [
                *(program, "generic", "http2", "hpack"),
                *("-h", "127.0.0.1", "-p", str(gate.grpc_port), "-o", "5"),
            ],
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )

    assert result.returncode == 0, result.stdout
    assert "145 tests, 145 passed, 0 skipped, 0 failed" in result.stdout
