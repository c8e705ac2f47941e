from ringfence.rules.load import load_text


def rule_of(more="", defaults=""):
    limit = f"{{unit: minute, requests_per_unit: 5{more}}}"
    text = f"domain: d\n{defaults}\ndescriptors: [{{key: k, rate_limit: {limit}}}]\n"
    [rule] = load_text(text).rules.rules()
    return rule


def test_a_rule_may_be_lent_unless_it_or_its_file_says_otherwise():
    no = "defaults: {leases: false}"

    assert rule_of().leases
    assert not rule_of(more=", leases: false").leases
    assert not rule_of(defaults=no).leases
    assert rule_of(more=", leases: true", defaults=no).leases
