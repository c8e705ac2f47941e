"""Builder of small scenarios for mutants, each with the events that must or must not occur."""

from msgspec import Struct

from simulations.scenarios.scenario import Fault, Level, Load, Network, Scenario

__all__ = ["Testbed", "build_testbed"]

_RULES = """\
domain: sim
descriptors:
  - key: day
    rate_limit: {unit: day, requests_per_unit: 1000, algorithm: fixed_window}
  - key: scarce
    rate_limit: {unit: day, requests_per_unit: 12, algorithm: fixed_window}
  - key: kept
    rate_limit: {unit: day, requests_per_unit: 500, algorithm: sliding_window_log}
  - key: log
    rate_limit: {period: 4s, requests_per_unit: 10, algorithm: sliding_window_log}
  - key: fixed
    rate_limit: {period: 4s, requests_per_unit: 10, algorithm: fixed_window}
  - key: sliding
    rate_limit: {period: 4s, requests_per_unit: 20, algorithm: sliding_window}
  - key: bucket
    rate_limit: {period: 4s, requests_per_unit: 10, algorithm: token_bucket}
  - key: queued
    rate_limit: {period: 4s, requests_per_unit: 10, algorithm: leaky_bucket, mode: queue}
  - key: soft
    rate_limit: {period: 4s, requests_per_unit: 8, soft: 50%, algorithm: token_bucket}
  - key: everywhere
    rate_limit: {unit: day, requests_per_unit: 400, algorithm: fixed_window, scope: global}
  - key: soon
    rate_limit: {period: 30s, requests_per_unit: 400, algorithm: sliding_window, scope: global}
  - key: world
    rate_limit: {unit: minute, requests_per_unit: 600, algorithm: sliding_window, scope: global}
  - key: pool
    rate_limit: {unit: minute, requests_per_unit: 600, algorithm: token_bucket, scope: global}
  - key: parts
    rate_limit: {unit: day, requests_per_unit: 100, algorithm: fixed_window, global: {mode: split}}
  - key: home
    rate_limit: {unit: day, requests_per_unit: 100, algorithm: fixed_window,
                 global: {mode: home, home: dc1}}
"""
_LAN = Network()


class Testbed(Struct, frozen=True):
    """Scenario for mutants, with the rare events that must or must not occur in it."""

    scenario: Scenario
    wanted: tuple[str, ...] = ()
    """Names of events in `simulations.judging.coverage`."""
    unwanted: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the testbed's scenario."""
        return self.scenario.name


def build_testbed(
    name: str,
    about: str,
    *,
    seconds: float,
    calm: float,
    loads: tuple[Load, ...],
    faults: tuple[Fault, ...] = (),
    nodes: int = 3,
    datacenters: int = 1,
    network: Network = _LAN,
    level: Level = "core",
    bounded_refunds: bool = False,
    wanted: tuple[str, ...] = (),
    unwanted: tuple[str, ...] = (),
) -> Testbed:
    """Create a scenario with the rules of all mutant scenarios; by default with three nodes of one
    data center."""
    scenario = Scenario(
        name,
        about,
        level=level,
        nodes=nodes,
        datacenters=datacenters,
        seconds=seconds,
        calm=calm,
        rules=_RULES,
        loads=loads,
        network=network,
        faults=faults,
        bounded_refunds=bounded_refunds,
    )
    return Testbed(scenario, wanted, unwanted)
