"""Sessions that a node closes when too many answers are unacknowledged."""

from dataclasses import dataclass

from node.requests.sessions.unacknowledged_bytes import UnacknowledgedBytes


@dataclass(eq=False)
class Reader:
    unsent: int = 0
    is_member: bool = False


class World:
    def __init__(self) -> None:
        self.given_up: list[Reader] = []
        self.account: UnacknowledgedBytes[Reader] = UnacknowledgedBytes(self._give_up, most=1000)

    def _give_up(self, reader: Reader) -> None:
        self.given_up.append(reader)
        reader.unsent = 0
        self.account.left(reader)

    def send(self, reader: Reader, size: int) -> None:
        reader.unsent += size + 4
        self.account.sent(reader, size, reader.unsent)


def test_readers_that_acknowledge_are_never_disconnected() -> None:
    w = World()
    readers = [Reader() for _ in range(5)]
    for _ in range(20):
        for reader in readers:
            w.send(reader, 196)
            reader.unsent = 0

    assert w.given_up == []
    assert w.account.total <= 1000


def test_the_session_without_progress_for_longest_is_closed_first() -> None:
    w = World()
    stuck, slow = Reader(), Reader()
    w.send(stuck, 396)
    w.send(slow, 396)
    for _ in range(2):
        slow.unsent -= 200
        w.send(slow, 196)
    assert w.given_up == []
    w.send(slow, 296)

    assert w.given_up == [stuck]
    assert w.account.total == slow.unsent == 700


def test_a_session_whose_peer_acknowledges_nothing_makes_no_progress() -> None:
    w = World()
    slow, stuck = Reader(), Reader()
    w.send(slow, 196)
    w.send(stuck, 196)
    slow.unsent -= 100
    w.send(slow, 96)
    w.send(stuck, 196)

    w.send(slow, 496)

    assert w.given_up == [stuck]


def test_bytes_that_were_acknowledged_meanwhile_make_room() -> None:
    w = World()
    first, second = Reader(), Reader()
    w.send(first, 996)
    assert w.given_up == [], "the total is at the bound"
    first.unsent = 400

    w.send(second, 596)

    assert w.given_up == []
    assert w.account.total == 1000


def test_all_sessions_may_leave_32_mib_unacknowledged() -> None:
    given_up: list[Reader] = []
    account: UnacknowledgedBytes[Reader] = UnacknowledgedBytes(given_up.append)
    reader = Reader(32 << 20)

    account.sent(reader, 1, reader.unsent)
    assert given_up == []
    reader.unsent += 1
    account.sent(reader, 1, reader.unsent)

    assert given_up == [reader]


def test_clients_are_disconnected_before_members() -> None:
    w = World()
    member, client = Reader(is_member=True), Reader()
    w.send(member, 496)
    w.send(client, 596)

    assert w.given_up == [client]
    w.send(member, 600)
    assert w.given_up == [client, member]


def test_eviction_frees_space_well_below_the_bound() -> None:
    w = World()
    readers = [Reader() for _ in range(11)]
    for reader in readers:
        w.send(reader, 96)

    assert w.given_up == readers[:4]
    assert w.account.total == 700


def test_a_closed_session_leaves_nothing_behind() -> None:
    w = World()
    reader = Reader()
    w.send(reader, 496)
    reader.unsent = 0
    w.account.left(reader)
    w.account.sent(reader, 100, reader.unsent)

    assert w.account.total == 0
    assert len(w.account._accounts) == 0
