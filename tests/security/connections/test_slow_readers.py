"""P14: all connections that do not read share one bound on the memory of a node."""

from pathlib import Path

from ringfence.transport.settings import Settings
from ringfence.wire import AskRules, ErrorCode, Hello, Role, Rules, Welcome
from tests.node.end_to_end.test_serve import started
from tests.security.connections.callers import callers, resident_bytes

MIB = 1 << 20
GREEDY = 90
SMALL_WINDOW = Settings(receive_window=64 << 10, untrusted_receive_window=64 << 10)


def large_rules(directory: Path) -> Path:
    rows = "".join(
        f"  - key: client\n    value: {'v' * 60_000}{number}\n"
        "    rate_limit: {unit: minute, requests_per_unit: 5}\n"
        for number in range(15)
    )
    path = directory / "api.yaml"
    path.write_text(f"domain: api\ndescriptors:\n{rows}", "utf-8")
    return path


async def test_connections_that_do_not_read_cannot_fill_the_memory(tmp_path: Path) -> None:
    flags = {"a": ["--rules", str(large_rules(tmp_path))]}
    with started(tmp_path, flags) as running:
        node = running["a"]
        async with callers(settings=SMALL_WINDOW) as slow_endpoint, callers() as endpoint:
            good = await endpoint.open(node.port, Hello(Role.CLIENT, "good", b"", 1), AskRules(1))
            assert isinstance(await good.wait_message(), Welcome)
            assert isinstance(await good.wait_message(), Rules)
            before = resident_bytes(node.process.pid)
            slow_readers = []
            for number in range(GREEDY):
                caller = await slow_endpoint.open(
                    node.port, Hello(Role.CLIENT, "greedy", b"", number)
                )
                assert isinstance(await caller.wait_message(), Welcome)
                caller.stop_reading()
                caller.send(*[AskRules(seq) for seq in range(1, 5)])
                slow_readers.append(caller)
                good.send(AskRules(2 + number))
                assert isinstance(await good.wait_message(), Rules)

            assert (await slow_readers[0].wait_closed())[0] == ErrorCode.OVERLOADED
            assert good.closed is None
            # Without the bound, 90 connections held 3.6 MB each: 324 MB.
            # The bound is 32 MiB, and the connections themselves need memory, too.
            assert resident_bytes(node.process.pid) - before < 96 * MIB
