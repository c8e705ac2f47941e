from hypothesis import given
from hypothesis import strategies as st

from node.requests.sessions.sent_answers import Sender, SentAnswers
from ringfence.wire import Role

Kept = SentAnswers[str]


def test_a_repeated_request_number_gets_the_same_answer() -> None:
    sender = Kept().of(Role.CLIENT, "app", 1)

    sender.remember(7, None)
    assert sender.has_asked(7)
    assert sender.answers_to(7) == ()
    sender.remember(7, b"yes")

    assert sender.answers_to(7) == (b"yes",)
    assert not sender.has_asked(8)


def test_a_reconnected_sender_keeps_its_memory_and_another_process_does_not() -> None:
    senders = Kept()
    first = senders.of(Role.CLIENT, "app", 1)

    assert senders.of(Role.CLIENT, "app", 1) is first
    assert senders.of(Role.CLIENT, "app", 2) is not first
    assert senders.of(Role.CLIENT, "other", 1) is not first


def test_a_client_named_like_a_node_does_not_share_its_memory() -> None:
    senders = Kept()
    node = senders.of(Role.NODE, "b", 1)
    node.remember(7, b"answer")

    client = senders.of(Role.CLIENT, "b", 1)

    assert not client.has_asked(7)
    assert senders.of(Role.NODE, "b", 1) is node


def test_at_least_the_frames_that_a_link_has_in_flight_are_remembered() -> None:
    sender = Kept().of(Role.CLIENT, "app", 1)

    for seq in range(1, 1001):
        sender.remember(seq, b"answer")

    assert all(sender.has_asked(seq) for seq in range(1000 - 256, 1001))
    assert not sender.has_asked(1)


def test_the_answers_of_8192_senders_are_remembered() -> None:
    senders = Kept()
    for session in range(8193):
        senders.of(Role.CLIENT, "app", session).remember(1, b"")

    assert len(senders) == 8192
    assert [senders.find(session, 1)[0] for session in (0, 1)] == [(), (b"",)]


def test_an_answer_is_found_by_session_and_number_with_its_time() -> None:
    senders: SentAnswers[str] = SentAnswers(clock=lambda: 5)
    sender = senders.of(Role.CLIENT, "app", 1)
    sender.remember(7, None)
    sender.remember(7, b"yes")

    assert senders.find(1, 7) == ((b"yes",), 5)
    assert senders.find(1, 8) == ((), 0)
    assert senders.find(2, 7) == ((), 0)


def test_large_answers_are_stored_up_to_a_bound_in_bytes() -> None:
    sender = Kept().of(Role.CLIENT, "app", 1)

    for seq in range(1, 101):
        sender.remember(seq, bytes(250_000))

    assert sender.size <= 4 << 20
    assert sender.has_asked(100)
    assert not sender.has_asked(1)


def test_exactly_four_mebibytes_of_answers_are_stored_for_each_sender() -> None:
    sender = Kept().of(Role.CLIENT, "app", 1)

    for seq in range(1, 5):
        sender.remember(seq, bytes(1 << 20))
    assert all(sender.has_asked(seq) for seq in range(1, 5))
    sender.remember(5, b"x")

    assert [sender.has_asked(seq) for seq in range(1, 6)] == [False, True, True, True, True]


def test_exactly_512_requests_are_stored_for_each_sender() -> None:
    sender = Kept().of(Role.CLIENT, "app", 1)

    for seq in range(1, 513):
        sender.remember(seq, b"x")
    assert sender.has_asked(1)
    sender.remember(513, b"x")

    assert not sender.has_asked(1)
    assert sender.has_asked(2)


def test_the_sender_that_was_silent_longest_is_dropped_first() -> None:
    senders = Kept(most=2)
    early, late = senders.of(Role.CLIENT, "early", 1), senders.of(Role.CLIENT, "late", 1)
    late.remember(1, b"x")
    early.remember(1, b"x")

    senders.of(Role.CLIENT, "newcomer", 1)

    assert senders.of(Role.CLIENT, "early", 1) is early
    assert senders.of(Role.CLIENT, "late", 1) is not late


def test_a_dropped_connected_sender_is_remembered_at_its_next_request() -> None:
    senders = Kept(most=1)
    sender = senders.of(Role.CLIENT, "app", 1)
    sender.remember(1, b"x")
    senders.of(Role.CLIENT, "other", 1)
    assert not sender.has_asked(1)

    sender.remember(2, b"y")

    assert senders.of(Role.CLIENT, "app", 1) is sender
    assert senders.size == 1


@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 5),  # the sender
            st.integers(1, 8),  # the request
            st.none() | st.integers(0, 40),  # size of the answer
            st.booleans(),  # over a new connection
        ),
        max_size=60,
    )
)
def test_memory_stays_bounded_and_correctly_accounted(
    steps: list[tuple[int, int, int | None, bool]],
) -> None:
    senders = Kept(most=3, most_bytes=100)
    connections: dict[int, list[Sender[str]]] = {}

    for who, seq, size, over_a_new_one in steps:
        held = connections.setdefault(who, [])
        if over_a_new_one or not held:
            held.insert(0, senders.of(Role.CLIENT, "app", who))
        speaker = held[seq % len(held)]  # An old connection may still record an answer.
        speaker.remember(seq, None if size is None else bytes(size))

        everyone = {id(sender): sender for held in connections.values() for sender in held}
        assert len(senders) <= 3
        assert senders.size <= 100
        assert sum(sender.size for sender in everyone.values()) == senders.size
