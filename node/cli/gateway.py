"""`ringfence gateway`: a client of the cluster that serves checks over HTTP and gRPC."""

from importlib.util import find_spec
from pathlib import Path

import click

from node.cli.common import IntegerRange, cluster_option, log_to_stderr
from ringfence.errors import ConfigError

__all__ = ["gateway", "require_gateway"]


@click.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Settings file (docs/guides/gateway). RINGFENCE_GATEWAY_* and flags override it.",
)
@cluster_option
@click.option(
    "--listen", metavar="HOST:PORT", help="Address of the HTTP port; 127.0.0.1:7180 when absent."
)
@click.option(
    "--grpc",
    metavar="HOST:PORT",
    help="Address of the gRPC port for Envoy; 127.0.0.1:7181 when absent, '' for none.",
)
@click.option("--workers", type=IntegerRange(1, 64), help="Processes; 1 when absent.")
@click.option("--tokens", help="File of tokens, as `ringfence keys new` writes it.")
@click.option("--tls-cert", help="Certificate chain, for both ports.")
@click.option("--tls-key", help="Its private key.")
@click.option("--tls-client-ca", help="Require client certificates of this authority.")
@click.option("--domain", help="The domain of /v1/auth and /shouldAllowRequest; api when absent.")
@click.option(
    "--auth",
    multiple=True,
    metavar="DESCRIPTOR",
    help="What /v1/auth counts by, as client=ip+path; repeatable; client=ip when absent.",
)
@click.option(
    "--trusted-proxy",
    "trusted_proxies",
    multiple=True,
    metavar="NETWORK",
    help="Proxies whose headers name the client's address; loopback when absent. Repeatable.",
)
@click.option(
    "--strict",
    is_flag=True,
    default=None,
    help="Serve only when rules can match --domain and --auth, and each check.",
)
@click.option("--headers", type=click.Choice(["ietf", "x", "both", "none"]))
@click.option("--deny-status", type=click.Choice(["429", "403"]), help="429 when absent.")
@click.option("--with-stdin", is_flag=True, hidden=True, help="Stop when standard input ends.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
def gateway(
    config: Path | None, with_stdin: bool, log_level: str, deny_status: str | None, **flags: object
) -> None:
    """Serve HTTP and Envoy's gRPC until SIGTERM, as a client of the cluster.

    Proxies and programs in other languages send their checks here. Beyond loopback it needs tokens.
    """
    require_gateway()
    from ringfence.gateway.process.settings import load_gateway_settings
    from ringfence.gateway.process.supervisor import run_gateway

    flags = {
        name: list(value) if isinstance(value, tuple) else value for name, value in flags.items()
    }
    flags["deny_status"] = int(deny_status) if deny_status else None
    settings = load_gateway_settings(config, flags=flags)
    with log_to_stderr(log_level):
        run_gateway(settings, tied_to_stdin=with_stdin)


def require_gateway() -> None:
    """Raise `ConfigError` when the gateway's packages are not installed."""
    missing = [name for name in ("envoy", "granian", "grpc", "msgspec") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the gateway needs {missing[0]!r}, which is not installed; install it with its extra: "
            "pip install '.[node,gateway]' in a checkout, or 'ringfence[node,gateway]' where it "
            "is published"
        )
