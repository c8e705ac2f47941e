"""Where mutants are hunted: a small scenario, and what must happen in it now and then."""

from dataclasses import dataclass

from simulations.scenarios.scenario import Fault, Load, Network, Scenario

__all__ = ["Ground", "ground"]

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


@dataclass(frozen=True, slots=True)
class Ground:
    """A scenario, and which rare things must happen in it, or must not."""

    scenario: Scenario
    wanted: tuple[str, ...] = ()
    """Marks of `simulations.judging.coverage`."""
    unwanted: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The scenario's."""
        return self.scenario.name


def ground(
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
    wanted: tuple[str, ...] = (),
    unwanted: tuple[str, ...] = (),
) -> Ground:
    """Make one, by the rules that all of them share: three nodes of one data center, unless said
    otherwise."""
    scenario = Scenario(
        name,
        about,
        nodes=nodes,
        datacenters=datacenters,
        seconds=seconds,
        calm=calm,
        rules=_RULES,
        loads=loads,
        network=network,
        faults=faults,
    )
    return Ground(scenario, wanted, unwanted)
