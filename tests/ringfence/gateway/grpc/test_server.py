"""Tests of the gRPC port with the client of grpcio over a real socket."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import grpc
import pytest
from envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hpack import Encoder

import ringfence
from ringfence.errors import ConfigError
from ringfence.gateway.grpc.connection import Beginner, Call
from ringfence.gateway.grpc.grpc_messages import Refusal, Status
from ringfence.gateway.grpc.hpack import HeaderBlock
from ringfence.gateway.grpc.http2_sender import field, frame
from ringfence.gateway.grpc.port import GrpcPort
from ringfence.gateway.grpc.server import GrpcServer
from ringfence.gateway.process.tokens import Tokens
from ringfence.gateway.process.worker import make_rls
from ringfence.peering.target import StartedCheck
from tests.ringfence.gateway.gateway import RULES, HandClock, settings_of

TIMEOUT = 10.0
METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
HERE = ("127.0.0.1", 0)
S = health_pb2.HealthCheckResponse


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(3 * TIMEOUT):
            await main()

    asyncio.run(bounded())


@asynccontextmanager
async def server() -> AsyncIterator[tuple[GrpcServer, grpc.aio.Channel]]:
    async with ringfence.local(RULES, clock=HandClock()) as limiter:
        settings = settings_of()
        grpc_server = GrpcServer(make_rls(limiter, settings), Tokens(), settings, HERE)
        port = await grpc_server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield grpc_server, channel
        await grpc_server.stop()


@asynccontextmanager
async def open_port(
    answer: Callable[[HeaderBlock, bytes], Awaitable[bytes]], body_timeout: float = 5.0
) -> AsyncIterator[tuple[int, list[str]]]:
    """Open a port; yield its number and the causes of its refusals."""
    refusals: list[str] = []
    grpc_port = GrpcPort(answer, settings_of(body_timeout=body_timeout), refusals.append)
    yield await grpc_port.start(HERE, None), refusals
    await grpc_port.stop(0.5)


@asynccontextmanager
async def port(
    answer: Callable[[HeaderBlock, bytes], Awaitable[bytes]],
) -> AsyncIterator[tuple[grpc.aio.Channel, list[str]]]:
    """Open a port; yield a channel to it and the causes of its refusals."""
    async with (
        open_port(answer) as (number, refusals),
        grpc.aio.insecure_channel(f"127.0.0.1:{number}") as channel,
    ):
        yield channel, refusals


async def echo(head: HeaderBlock, message: bytes) -> bytes:
    return message


def request_for(client: str) -> bytes:
    request = RateLimitRequest(domain="api")
    request.descriptors.add().entries.add(key="client", value=client)
    written: bytes = request.SerializeToString()
    return written


async def code_of(call: Awaitable[object]) -> tuple[grpc.StatusCode, str | None]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()


def test_concurrent_calls_on_one_connection_are_all_answered() -> None:
    async def main() -> None:
        async with server() as (grpc_server, channel):
            ask = channel.unary_unary(METHOD, response_deserializer=RateLimitResponse.FromString)
            answers = await asyncio.gather(
                *[ask(request_for(str(number % 20)), timeout=TIMEOUT) for number in range(100)]
            )
            codes = [answer.overall_code for answer in answers]
            assert codes.count(RateLimitResponse.OK) == 60, "3 for each of 20 clients"
            assert grpc_server.counters["grpc"] == 100

    run(main)


def test_messages_above_the_maximum_size_are_refused() -> None:
    async def main() -> None:
        async with port(echo) as (channel, refusals):
            ask = channel.unary_unary("/x/y")
            for size in (0, 1, 16_384, 65_536):
                assert await ask(bytes(size), timeout=TIMEOUT) == bytes(size)
            code, _ = await code_of(ask(bytes(65_537), timeout=TIMEOUT))
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert await ask(b"on", timeout=TIMEOUT) == b"on"
            assert refusals == ["too_large"]

    run(main)


def test_a_refusal_message_may_contain_any_characters() -> None:
    detail = "100 % nö: line\nbreak"

    async def refuse(head: HeaderBlock, message: bytes) -> bytes:
        raise Refusal(Status.INVALID_ARGUMENT, detail)

    async def main() -> None:
        async with port(refuse) as (channel, _):
            error = await code_of(channel.unary_unary("/x/y")(b"", timeout=TIMEOUT))
        assert error == (grpc.StatusCode.INVALID_ARGUMENT, detail)

    run(main)


def test_unknown_or_compressed_calls_get_unimplemented_and_exceptions_get_internal() -> None:
    async def raise_error(head: HeaderBlock, message: bytes) -> bytes:
        raise ZeroDivisionError

    async def main() -> None:
        async with server() as (_, channel):
            code, _ = await code_of(channel.unary_unary("/no/such")(b"", timeout=TIMEOUT))
            assert code is grpc.StatusCode.UNIMPLEMENTED
            compressed = channel.unary_unary(METHOD)(
                request_for("x" * 1000), timeout=TIMEOUT, compression=grpc.Compression.Gzip
            )
            code, _ = await code_of(compressed)
            assert code is grpc.StatusCode.UNIMPLEMENTED
        async with port(raise_error) as (channel, refusals):
            code, _ = await code_of(channel.unary_unary("/x/y")(b"", timeout=TIMEOUT))
            assert (code, refusals) == (grpc.StatusCode.INTERNAL, ["bugs"])

    run(main)


def test_a_client_can_cancel_its_call() -> None:
    started: asyncio.Queue[bytes] = asyncio.Queue()
    cancelled: asyncio.Queue[bytes] = asyncio.Queue()

    async def hang(head: HeaderBlock, message: bytes) -> bytes:
        started.put_nowait(message)
        try:
            return await asyncio.Future()
        except asyncio.CancelledError:
            cancelled.put_nowait(message)
            raise

    async def main() -> None:
        async with port(hang) as (channel, _):
            code, _ = await code_of(channel.unary_unary("/x/y")(b"a", timeout=0.5))
            assert code is grpc.StatusCode.DEADLINE_EXCEEDED
            assert await cancelled.get() == b"a"
            hanging = channel.unary_unary("/x/y")(b"b", timeout=TIMEOUT)
            assert await started.get() == b"a"
            assert await started.get() == b"b"
            hanging.cancel()
            assert await cancelled.get() == b"b"

    run(main)


class CancelledCheck(StartedCheck):
    """Check that records whether it was cancelled."""

    def __init__(self) -> None:
        self.was_cancelled = asyncio.Event()

    def on_answer(self, answer: object) -> None:
        raise AssertionError

    def cancel(self) -> None:
        self.was_cancelled.set()


@asynccontextmanager
async def quick_port(begin: Beginner) -> AsyncIterator[tuple[grpc.aio.Channel, GrpcPort]]:
    """Open a port that begins each call without a task; yield a channel to it and the port."""
    grpc_port = GrpcPort(echo, settings_of(), lambda cause: None, begin)
    number = await grpc_port.start(HERE, None)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{number}") as channel:
        yield channel, grpc_port
    await grpc_port.stop(0.5)


async def wait_until_idle(grpc_port: GrpcPort) -> None:
    """Wait until no call is in flight."""
    while grpc_port.calls:  # noqa: ASYNC110 - a port has no event for it.
        await asyncio.sleep(0.01)


def test_a_call_can_be_answered_immediately_or_later_or_by_a_task() -> None:
    async def answer_later(message: bytes) -> bytes:
        await asyncio.sleep(0.001)
        return message + b" by a task"

    def begin(head: HeaderBlock, message: bytes, call: Call) -> bool:
        match message:
            case b"now":
                call.answer(message)
            case b"later":
                asyncio.get_running_loop().call_later(0.001, call.answer, message)
            case b"resumed":
                call.resume(partial(answer_later, message))
            case b"failed":
                asyncio.get_running_loop().call_soon(call.fail, Refusal(Status.NOT_FOUND, "no"))
            case b"refused":
                raise Refusal(Status.UNAVAILABLE, "not now")
            case b"broken":
                raise ValueError
            case _:
                return False
        return True

    async def main() -> None:
        async with quick_port(begin) as (channel, grpc_port):
            ask = channel.unary_unary("/x/y")
            for _ in range(3):
                assert await ask(b"now", timeout=TIMEOUT) == b"now"
                assert await ask(b"later", timeout=TIMEOUT) == b"later"
                assert await ask(b"resumed", timeout=TIMEOUT) == b"resumed by a task"
                assert await ask(b"echo", timeout=TIMEOUT) == b"echo"
                for message, code in (
                    (b"failed", grpc.StatusCode.NOT_FOUND),
                    (b"refused", grpc.StatusCode.UNAVAILABLE),
                    (b"broken", grpc.StatusCode.INTERNAL),
                ):
                    assert (await code_of(ask(message, timeout=TIMEOUT)))[0] is code
            await wait_until_idle(grpc_port)

    run(main)


def test_a_check_is_cancelled_with_its_call() -> None:
    checks: asyncio.Queue[CancelledCheck] = asyncio.Queue()

    def begin(head: HeaderBlock, message: bytes, call: Call) -> bool:
        call.check = check = CancelledCheck()
        checks.put_nowait(check)
        return True

    async def main() -> None:
        async with quick_port(begin) as (channel, grpc_port):
            ask = channel.unary_unary("/x/y")
            assert (await code_of(ask(b"", timeout=0.5)))[0] is grpc.StatusCode.DEADLINE_EXCEEDED
            await (await checks.get()).was_cancelled.wait()
            hanging = ask(b"", timeout=TIMEOUT)
            reset = await checks.get()
            hanging.cancel()
            await reset.was_cancelled.wait()
            await wait_until_idle(grpc_port)
            lost_call = ask(b"", timeout=TIMEOUT)
            lost = await checks.get()
            next(iter(grpc_port.connections)).abort()
            await lost.was_cancelled.wait()
            assert (await code_of(lost_call))[0] is grpc.StatusCode.UNAVAILABLE
            await wait_until_idle(grpc_port)

    run(main)


def test_each_call_has_its_own_deadline() -> None:
    def begin(head: HeaderBlock, message: bytes, call: Call) -> bool:
        if message == b"answered":
            call.answer(message)
        return True

    async def main() -> None:
        async with quick_port(begin) as (channel, grpc_port):
            ask = channel.unary_unary("/x/y")
            refusals: list[str] = []
            grpc_port.on_refusal = refusals.append
            hanging = [ask(bytes((number,)), timeout=0.9 - number / 5) for number in range(4)]
            assert await ask(b"answered", timeout=0.2) == b"answered"
            for call in reversed(hanging):
                assert (await code_of(call))[0] is grpc.StatusCode.DEADLINE_EXCEEDED
            async with asyncio.timeout(TIMEOUT):
                await wait_until_idle(grpc_port)
            assert set(refusals) <= {"deadline"}

    run(main)


def test_health_can_be_checked_listed_and_watched_until_the_server_stops() -> None:
    async def main() -> None:
        async with server() as (grpc_server, channel):
            stub = health_pb2_grpc.HealthStub(channel)
            known, unknown = [
                health_pb2.HealthCheckRequest(service=name) for name in ("ratelimit", "else")
            ]
            watch, unknown_watch = stub.Watch(known), stub.Watch(unknown)
            assert (await watch.read()).status == S.NOT_SERVING
            assert (await unknown_watch.read()).status == S.SERVICE_UNKNOWN
            assert (await stub.Check(known)).status == S.NOT_SERVING

            await grpc_server.set_ready()

            assert (await watch.read()).status == S.SERVING
            assert (await stub.Check(known)).status == S.SERVING
            listed = (await stub.List(health_pb2.HealthListRequest())).statuses
            assert {each.status for each in listed.values()} == {S.SERVING}
            code, _ = await code_of(stub.Check(unknown))
            assert code is grpc.StatusCode.NOT_FOUND
            unknown_watch.cancel()

            stopping = asyncio.create_task(grpc_server.stop())
            assert (await watch.read()).status == S.NOT_SERVING
            code, _ = await code_of(watch.read())
            assert code is grpc.StatusCode.UNAVAILABLE
            await stopping

    run(main)


def test_calls_in_flight_are_answered_when_the_port_stops() -> None:
    async def main() -> None:
        started, may_answer = asyncio.Event(), asyncio.Event()

        async def answer(head: HeaderBlock, message: bytes) -> bytes:
            started.set()
            await may_answer.wait()
            return message

        grpc_port = GrpcPort(answer, settings_of(), print)
        number = await grpc_port.start(HERE, None)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{number}") as channel:
            call = asyncio.ensure_future(channel.unary_unary("/x/y")(b"a", timeout=TIMEOUT))
            await started.wait()
            stopping = asyncio.create_task(grpc_port.stop(TIMEOUT))
            await asyncio.sleep(0)
            may_answer.set()
            assert await call == b"a"
            await stopping

    run(main)


def test_connections_without_grpc_or_without_data_are_closed() -> None:
    async def main() -> None:
        async with open_port(echo, body_timeout=0.2) as (number, refusals):
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert b"the connection preface of HTTP/2 is missing" in await reader.read()
            writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            await reader.read()  # Returns when the port closes the connection.
            writer.close()
        assert refusals[0] == "bad_http2"

    run(main)


def test_an_error_names_a_port_that_is_already_in_use() -> None:
    async def main() -> None:
        listener = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        address = listener.sockets[0].getsockname()
        with pytest.raises(ConfigError, match=rf"gRPC: .*127.0.0.1:{address[1]}: another"):
            await GrpcPort(echo, settings_of(), print).start(address, None)
        listener.close()

    run(main)


def test_the_deadline_of_a_call_is_enforced() -> None:
    cancelled = asyncio.Event()

    async def hang(head: HeaderBlock, message: bytes) -> bytes:
        try:
            return await asyncio.Future()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def main() -> None:
        async with open_port(hang) as (number, refusals):
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            for stream, timeout in ((1, "20m"), (3, "soon"), (5, "123456789m")):
                fields = [(":method", "POST"), (":scheme", "http"), (":path", "/x/y")]
                fields += [("content-type", "application/grpc"), ("grpc-timeout", timeout)]
                block = Encoder().encode(fields)
                call = frame(1, 4, stream, block) + frame(0, 1, stream, bytes(5))
                preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" if stream == 1 else b""
                writer.write(preface + call)
            received = b""
            while received.count(b"grpc-status") < 3:
                received += await reader.read(65_536)
            assert field(b"grpc-status", b"4") in received
            assert received.count(field(b"grpc-status", b"3")) == 2
            await cancelled.wait()
            assert sorted(refusals) == ["bad_body", "bad_body", "deadline"]
            writer.close()

    run(main)


def test_watches_per_connection_are_bounded() -> None:
    async def main() -> None:
        async with server() as (_, channel):
            stub = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest(service="ratelimit")
            watches = [stub.Watch(request) for _ in range(5)]
            results = await asyncio.gather(
                *[each.read() for each in watches], return_exceptions=True
            )
            [refused] = [each for each in results if isinstance(each, grpc.aio.AioRpcError)]
            assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            for each in watches:
                each.cancel()
            await stub.Check(request)
            assert (await stub.Watch(request).read()).status == S.NOT_SERVING

    run(main)


def test_under_memory_pressure_the_connection_with_most_bytes_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ringfence.gateway.grpc.port._MAX_KEPT", 100_000)

    async def main() -> None:
        async with open_port(echo) as (number, refusals):
            connections = []
            for size in (30_000, 60_000, 20_000):
                reader, writer = await asyncio.open_connection("127.0.0.1", number)
                fields = [(":method", "POST"), (":scheme", "http"), (":path", "/x/y")]
                writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
                writer.write(frame(1, 4, 1, Encoder().encode(fields)))
                for at in range(0, size, 10_000):
                    writer.write(frame(0, 0, 1, bytes(min(10_000, size - at))))
                connections.append((reader, writer))
                await asyncio.sleep(0.05)
            with suppress(ConnectionError):
                while await connections[1][0].read(65_536):
                    pass
            assert refusals == ["memory"]
            for _, writer in connections:
                writer.close()

    run(main)
