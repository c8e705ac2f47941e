from dataclasses import replace
from random import Random

import pytest

from gossip import Record, Settings, Status
from gossip.members.member_table import MemberTable
from gossip.members.tombstones import Tombstones
from gossip.timers import Due, Timers

NS = 1_000_000_000
ME = Record("me", "h", 1, "dc1", "", 1.0, 1, 0, Status.ALIVE)


class Graveyard:
    """Tombstones of an empty member list, with its timers."""

    def __init__(self) -> None:
        self.table = MemberTable(ME)
        self.timers = Timers()
        self.tombstones = Tombstones(self.timers, Settings.lan())

    def bury(self, name: str, at: float, status: Status = Status.DEAD, **flags: bool) -> None:
        self.table.put(replace(ME, name=name, status=status))
        flags = {"is_seed": False, "is_quiet": False} | flags
        self.tombstones.add(name, round(at * NS), **flags)

    def recent(self, at: float) -> set[str]:
        """Return all members that 400 draws find."""
        random = Random(1)
        draws = [self.tombstones.recent(round(at * NS), self.table, random) for _ in range(400)]
        assert all(len(names) <= 1 for names in draws)
        return {name for names in draws for name in names}


@pytest.mark.parametrize(("is_seed", "minutes"), [(False, 15), (True, 60)])
def test_a_dead_member_is_forgotten_after_15_minutes_and_a_seed_after_an_hour(
    is_seed: bool, minutes: int
) -> None:
    grave = Graveyard()

    grave.bury("a", 7.0, is_seed=is_seed)

    assert grave.timers.next_at() == (7 + 60 * minutes) * NS
    assert grave.timers.pop((7 + 60 * minutes) * NS) == (Due.FORGET, "a")


def test_a_second_death_starts_the_time_again() -> None:
    grave = Graveyard()
    grave.bury("a", 0.0)
    grave.bury("b", 20.0)

    grave.bury("a", 25.0)

    assert grave.timers.next_at() == (20 + 900) * NS
    assert grave.recent(51.0) == {"a"}


def test_a_member_that_is_back_has_no_tombstone() -> None:
    grave = Graveyard()
    grave.bury("a", 0.0, is_quiet=True)
    assert list(grave.tombstones.quiet) == ["a"]

    grave.tombstones.drop("a")
    grave.tombstones.drop("a")
    grave.tombstones.drop("never dead")

    assert not grave.tombstones.quiet
    assert grave.timers.next_at() is None
    assert grave.recent(1.0) == set()


def test_only_members_that_died_in_the_last_30_seconds_may_be_found() -> None:
    grave = Graveyard()
    grave.bury("a", 0.0)
    grave.bury("left", 5.0, Status.LEFT)
    grave.bury("b", 10.0)

    assert grave.recent(30.0) == {"a", "b"}
    assert grave.recent(30.001) == {"b"}
    assert grave.recent(40.001) == set()


def test_one_of_the_last_16_dead_members_is_found_when_many_died() -> None:
    grave = Graveyard()
    for number in range(100):
        grave.bury(f"n{number}", number / 100)

    assert grave.recent(2.0) == {f"n{number}" for number in range(84, 100)}
