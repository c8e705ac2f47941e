"""Private Redis server for benchmarks: on a free port of this host, empty, without persistence."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from time import monotonic, sleep

from msgspec import Struct

from ringfence.errors import ConfigError, PeerUnavailable

__all__ = ["RedisServer", "redis_program", "running_redis"]

_HOST = "127.0.0.1"
_STARTUP = 20.0


class RedisServer(Struct, frozen=True):
    """Address and process id of a running Redis server."""

    port: int
    pid: int
    version: str


def redis_program(name: str) -> str:
    """Return the path of a program of Debian's Redis package.

    Raises `ConfigError` with the install command when it is missing."""
    found = shutil.which(name)
    if found is None:
        raise ConfigError(
            f"this benchmark needs {name}, which is not on the PATH; install it with "
            "`apt-get install --no-install-recommends redis-server`"
        )
    return found


@contextmanager
def running_redis(*, copy_of: int | None = None) -> Iterator[RedisServer]:
    """Start Redis and wait until it answers; stop it when the block ends.

    With `copy_of`, it is a replica of the server at that port of this host.

    Raises `ConfigError` when Redis is not installed and `PeerUnavailable` when it does not start.
    """
    program = redis_program("redis-server")
    port = _free_port()
    words = [program, "--bind", _HOST, "--port", str(port), "--save", "", "--appendonly", "no"]
    if copy_of is not None:
        words += ["--replicaof", _HOST, str(copy_of)]
    with TemporaryDirectory(prefix="ringfence-redis-") as home:
        process = subprocess.Popen(
            [*words, "--dir", home],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait_until_up(process, port)
            yield RedisServer(port, process.pid, _version(program))
        finally:
            process.terminate()
            process.wait()


def _wait_until_up(process: "subprocess.Popen[bytes]", port: int) -> None:
    give_up = monotonic() + _STARTUP
    while monotonic() < give_up:
        if process.poll() is not None:
            raise PeerUnavailable(f"redis-server ended with {process.returncode} at its start")
        try:
            with socket.create_connection((_HOST, port), timeout=1.0) as stream:
                stream.sendall(b"PING\r\n")
                if stream.recv(5) == b"+PONG":
                    return
        except OSError:
            pass  # Not ready yet.
        sleep(0.02)
    raise PeerUnavailable(f"redis-server did not answer on port {port} within {_STARTUP:g} s")


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as held:
        held.bind((_HOST, 0))
        return int(held.getsockname()[1])


def _version(program: str) -> str:
    words = subprocess.run([program, "--version"], check=True, capture_output=True, text=True)
    return next(word[2:] for word in words.stdout.split() if word.startswith("v="))
