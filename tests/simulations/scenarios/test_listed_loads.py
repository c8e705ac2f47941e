import pytest

from simulations.scenarios.listed_loads import format_checks, parse_checks
from simulations.scenarios.loads import Arrival
from simulations.scenarios.log_loads import load_arrivals
from simulations.scenarios.scenario import Load
from simulations.scenarios.seeds import stream

CHECKS = "1.250 client-1 k3 cost=2\n0.5 client-0 k1\n"


def test_a_list_gives_its_checks_in_order_of_time() -> None:
    assert parse_checks(CHECKS) == [Arrival(0.5, 0, "k1", 1), Arrival(1.25, 1, "k3", 2)]
    assert parse_checks(format_checks(parse_checks(CHECKS))) == parse_checks(CHECKS)
    assert parse_checks("") == []


def test_a_listed_load_ends_with_the_load() -> None:
    load = Load("listed", args={"checks": CHECKS})

    found = [*load_arrivals(load, 1.0, 2, stream(1, "load"))]

    assert found == [Arrival(0.5, 0, "k1", 1)]


@pytest.mark.parametrize(
    ("args", "clients", "said"),
    [
        ({"checks": "1 client-0"}, 1, "got '1 client-0'"),
        ({"checks": "soon client-0 k1"}, 1, "SECONDS client-NUMBER KEY"),
        ({"checks": "1 client-2 k1"}, 2, "must be client-0 to client-1, got client-2"),
        ({"lines": 3}, 1, "must be checks, got 'lines'"),
    ],
)
def test_an_invalid_list_is_rejected(args: dict[str, str], clients: int, said: str) -> None:
    with pytest.raises(ValueError, match=r"of a listed load|of load shape 'listed'") as error:
        load_arrivals(Load("listed", args={**args}), 5.0, clients, stream(1, "load"))

    assert said in str(error.value)
