import pytest
from msgspec.structs import replace

from gossip import ProbeSettings, Settings


@pytest.mark.parametrize("settings", [Settings.lan(), Settings.wan()])
def test_other_data_centers_are_probed_no_faster_than_the_local_one(settings):
    assert settings.local_dc.interval <= settings.remote_dc.interval
    assert settings.local_dc.timeout <= settings.remote_dc.timeout


def test_three_members_detect_a_crash_within_four_seconds():
    lan = Settings.lan().local_dc
    turn = 3 * lan.interval  # The first in one round of two members, and the last in the next.

    assert turn + lan.interval + lan.suspicion_factor * lan.interval < 4.0


@pytest.mark.parametrize(
    "changes", [{"interval": 0}, {"timeout": 0.5}, {"timeout": 0.01}, {"gossip_fanout": 0}]
)
def test_invalid_settings_are_refused(changes):
    with pytest.raises(ValueError, match="must be"):
        replace(ProbeSettings.lan(), **changes)


@pytest.mark.parametrize("changes", [{"nack_share": 1.0}, {"forget_after": 0.0}, {"flaps": -1}])
def test_invalid_settings_of_a_cluster_are_refused(changes):
    with pytest.raises(ValueError, match="must be"):
        replace(Settings.lan(), **changes)


def test_lifeguard_can_be_switched_off_as_a_whole():
    plain = Settings.lan().without_lifeguard()

    assert not any([plain.local_health, plain.dynamic_suspicion, plain.buddy, plain.own_pauses])
