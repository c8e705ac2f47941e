"""Commands of the simulator with invalid arguments."""

import pytest

from tests.invocation import Run, refused
from tests.simulations.cli.scenarios import AT_CORE


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stedy"], "got 'stedy'; did you mean steady?"),
        (["xyzzy"], "got 'xyzzy'; there are steady, hot-key"),
        (["steady", "--set", "nodes"], "--set must be NAME=VALUE, got 'nodes'"),
        (["steady", "--set", "colour=red"], "name in --set must be known, got 'colour=red'"),
        (["steady", "--set", "loss=2"], "must be a number from 0 to 0.9"),
        (["steady", "--set", "latency=moon"], "latency must be lan, near"),
        (["steady", "--nodes", "0"], "--nodes"),
        (["steady", "--seed", "-1"], "--seed"),
        (["steady", "--seed", "abc"], "'--seed': 'abc' is not a valid integer."),
        (["what-if", "--rules", "x", "--log", "y", "--rtt", "x"], "'x' is not a valid number."),
        (["--seed", "7"], "option --seed must follow the name of a scenario, as in `ringfence"),
        (["mutants", "one-too-many", "--at-least", "0.5"], "--at-least must be used with --sample"),
        (["mutants", "--package", "gossip"], "--package must be used with --sample"),
        (["mutants", "--record", "none", "--seed", "1"], "--seed must be used with --sample"),
        (["--jobs", "2"], "No such option '--jobs'"),
        (["steady", "--datacenters", "4"], "nodes must be at least 4, one per data center, got 3"),
        (["wan-partition", "--datacenters", "6"], "got 'dc6'"),
        (["steady", "--fault", ""], "must be VERB@AT"),
        (["steady", "--fault", "flood@3"], "verb of a fault must be one of crash, leave"),
        (["steady", "--fault", "crash"], "must be VERB@AT"),
        (["steady", "--fault", "loss@1-2"], "loss must have share=NUMBER, from 0 to 1"),
        (["steady", "--fault", "crash@1 who=n1"], "got 'who'"),
        (["steady", "--fault", "crash@1-2 node=n9"], "must be n1 to n3, got n9"),
        (["steady", "--fault", "cut@1-2 node=n1 from=x"], "must be n1 to n3, got x"),
        (
            ["steady", "--fault", "crash@50-51 node=n1"],
            "begin of fault 'crash@50-51 node=n1' must be before the end of the run at 50 s, got",
        ),
        (["node-crash", "--nodes", "1"], "must be n1, got n2"),
        (["steady", "--keep", "0"], "--keep must be none for a scenario without faults, got '0'"),
        (
            ["churn", "--keep", "6"],
            "none, or fault numbers below 6, such as 0,1, got '6'",
        ),
        (["churn", "--keep", "a"], "such as 0,1, got 'a'"),
        (["churn", "--keep", "0", "--no-faults"], "--keep must not be combined"),
        (["churn", "--fault", "crash@1 node=n1", "--no-faults"], "--fault must not be combined"),
        (["steady", "--report", "x.html", "--no-report"], "--report must not be combined"),
        (
            ["steady", "--report", "no/where.html"],
            "--report no/where.html: cannot be written: No such",
        ),
        (["steady", "--report", "no/../x.html"], "--report no/../x.html: cannot be written: No"),
        (["steady", "--report", "/proc/x.html"], "--report /proc/x.html: cannot be written: No"),
        (["steady", "--report", f"{300 * 'x'}.html"], "x.html: cannot be written: File name too l"),
        (["steady", *AT_CORE[:-1], "--report", "."], "--report"),
        (["steady", "--report", "/dev/fd/none"], "--report /dev/fd/none: cannot be written: No"),
        (["swarm", "--seeds", "0"], "--seeds"),
        (["swarm", "--cases", "nowhere"], "nowhere"),
        (["swarm", "--guided", "--scenario", "steady"], "--guided must be used without"),
        (["card", __file__], f"result file {__file__} must contain JSON lines"),
        (["card", "/dev/null"], "result file /dev/null must contain the output of `ringfence"),
        (["card", "none.json"], "cannot read the result file none.json"),
        (["case", "none.yaml"], "cannot read the case file none.yaml"),
        (["steady", *AT_CORE, "--save", "no/where.yaml"], "cannot write the case file"),
        (["swarm", "--scenario", "stedy"], "stedy"),
        (["mutants", "nobody"], "got 'nobody'"),
        (["mutants", "gossip/none.py:1:1:AddNot:1"], "got 'gossip/none.py:1:1:AddNot:1'"),
        (["mutants", "--unit", "--sample", "1", "--map", "no.gz"], "must contain the lines of"),
        (["mutants", "--record", "tests/none"], "got 'tests/none'"),
        (["what-if", "--rules", "none.yaml", "--log", "none.log"], "none.yaml"),
        (["what-if", "--rules", "none.yaml"], "--log"),
        (["what-if", "--rules", "x", "--log", "y", "--rtt", "nan"], "'--rtt': must be a number"),
        (["what-if", "--rules", "x", "--log", "y", "--interval", "nan"], "'--interval': must be"),
        (["mutants", "--at-least", "nan"], "'--at-least': must be a number, got nan"),
        (
            ["what-if", "--rules", "x", "--log", "y", "--report", "no/where.html"],
            "--report no/where.html: cannot be written: No such",
        ),
        (["steady", "--frob"], "--frob"),
    ],
)
def test_invalid_arguments_are_named_in_the_error(run: Run, words: list[str], said: str) -> None:
    assert said in refused(run(*words))
