"""Kubernetes manifests: valid by the schemas, consistent, and with commands that work."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import ringfence
from node.config.access import KeyDir
from node.config.key_files import write_keys
from node.config.settings import NodeSettings, load_settings
from ringfence.rules.loading.yaml_files import load_text
from ringfence.transport.tls.certificates import NODE_NAME

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "kubernetes"
MANIFESTS: list[dict[str, Any]] = [
    manifest
    for name in ("ringfence.yaml", "network-policy.yaml")
    for manifest in yaml.safe_load_all((FOLDER / name).read_text("utf-8"))
]
MONITOR: dict[str, Any] = yaml.safe_load((FOLDER / "pod-monitor.yaml").read_text("utf-8"))
BY_KIND = {manifest["kind"]: manifest for manifest in MANIFESTS}
POD = BY_KIND["StatefulSet"]["spec"]["template"]["spec"]
NODE = POD["containers"][0]


@pytest.mark.parametrize("version", ["1.27", "1.37"])
@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda each: each["kind"])
def test_manifests_match_the_schemas_of_kubernetes(manifest: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


def test_the_service_and_the_disruption_budget_select_the_pods_of_the_stateful_set() -> None:
    labels = BY_KIND["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    service = BY_KIND["Service"]

    assert service["spec"]["selector"] == labels
    assert BY_KIND["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert BY_KIND["StatefulSet"]["spec"]["selector"]["matchLabels"] == labels
    assert BY_KIND["StatefulSet"]["spec"]["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"]


def test_ports_volumes_and_names_agree() -> None:
    ports = {port["name"]: port["containerPort"] for port in NODE["ports"]}
    flags = dict(word.removeprefix("--").split("=", 1) for word in NODE["command"][2:])
    mounted = {mount["name"]: mount["mountPath"] for mount in NODE["volumeMounts"]}
    http = next(each["value"] for each in NODE["env"] if each["name"] == "RINGFENCE_NODE_HTTP")

    assert {port["port"] for port in BY_KIND["Service"]["spec"]["ports"]} == set(ports.values())
    assert flags["listen"].endswith(f":{ports['quic']}")
    assert flags["join"] == f"dns:{BY_KIND['Service']['metadata']['name']}:{ports['quic']}"
    assert http.endswith(f":{ports['operator']}")
    assert {flags["rules"], flags["keys"]} == set(mounted.values())
    assert {volume["name"] for volume in POD["volumes"]} == set(mounted)
    assert POD["volumes"][0]["configMap"]["name"] == BY_KIND["ConfigMap"]["metadata"]["name"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert NODE[probe]["httpGet"]["port"] in ports
        assert NODE[probe]["timeoutSeconds"] == 3


def test_the_network_policy_and_the_pod_monitor_select_the_pods_and_their_ports() -> None:
    labels = BY_KIND["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    ports = {port["name"]: port for port in NODE["ports"]}
    policy = BY_KIND["NetworkPolicy"]["spec"]
    nodes_and_clients, operators = policy["ingress"]
    [endpoint] = MONITOR["spec"]["podMetricsEndpoints"]

    assert policy["podSelector"]["matchLabels"] == labels
    assert {"podSelector": {"matchLabels": labels}} in nodes_and_clients["from"]
    for rule, name in ((nodes_and_clients, "quic"), (operators, "operator")):
        [allowed] = rule["ports"]
        assert allowed["port"] == ports[name]["containerPort"]
        assert allowed["protocol"] == ports[name]["protocol"]
    assert MONITOR["spec"]["selector"]["matchLabels"] == labels
    assert labels[MONITOR["spec"]["jobLabel"]] == "ringfence", "alerts.yaml selects this job"
    assert endpoint["port"] == "operator"
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"]["serverName"] == NODE_NAME
    assert (
        endpoint["tlsConfig"]["ca"]["secret"]["name"] == POD["volumes"][1]["secret"]["secretName"]
    )
    readme = (FOLDER / "README.md").read_text("utf-8")
    secret = endpoint["authorization"]["credentials"]
    assert f"generic {secret['name']} --from-literal={secret['key']}=" in readme
    assert "--token prometheus:observe" in readme


def test_counters_and_replicas_fit_into_the_memory_limit() -> None:
    environment = {each["name"]: each.get("value") for each in NODE["env"]}
    limit = NODE["resources"]["limits"]["memory"]

    assert limit.endswith("Gi")
    limit_bytes = int(limit.removesuffix("Gi")) * 2**30
    assert 2 * int(environment["RINGFENCE_NODE_MAX_BYTES"]) + 200 * 2**20 <= limit_bytes


def test_every_environment_variable_is_a_setting_or_a_field_of_the_pod() -> None:
    names = {each["name"] for each in NODE["env"]}
    settings = {"RINGFENCE_NODE_" + name.upper() for name in NodeSettings.__struct_fields__}

    assert names - settings == {"POD_NAME", "POD_IP"}
    environment = {"RINGFENCE_NODE_ZONE": "", "RINGFENCE_NODE_MAX_BYTES": "400000000"}
    assert load_settings(None, environment).zone == ""


def test_the_image_is_built_from_the_checkout_and_has_the_user_and_tag_of_the_manifests() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = (FOLDER / "Dockerfile").read_text("utf-8").splitlines()
    ignored = (FOLDER / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    [extras] = re.findall(r"/checkout\[([\w,]+)\]", "\n".join(lines))
    [user] = [line.split()[1] for line in lines if line.startswith("USER ")]
    images = [line.split()[1] for line in lines if line.startswith("FROM ")]
    included = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]

    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    assert user == f"{POD['securityContext']['runAsUser']}:{POD['securityContext']['runAsGroup']}"
    assert len(set(images)) == 1
    version = images[0].removeprefix("python:").removesuffix("-slim")
    assert f"Programming Language :: Python :: {version}" in project["classifiers"]
    assert project["dynamic"] == ["version"]
    assert NODE["image"] == f"ringfence:{ringfence.__version__}"
    assert all((ROOT / name).exists() for name in included)
    packages = {name.removesuffix("*") for name in tool["packages"]["find"]["include"]}
    assert packages | {"pyproject.toml", "setup.py", project["readme"], "LICENSE"} <= set(included)


def test_the_rules_in_the_config_map_load_without_a_warning() -> None:
    for name, text in BY_KIND["ConfigMap"]["data"].items():
        assert list(load_text(text, name).warnings) == []


def test_the_termination_grace_period_is_longer_than_a_leave() -> None:
    stop_timeout = int(re.findall(r"--timeout (\d+)", pre_stop_command())[0])

    assert stop_timeout + 2 * 5.0 < POD["terminationGracePeriodSeconds"]


def pre_stop_command() -> str:
    shell, flag, line = NODE["lifecycle"]["preStop"]["exec"]["command"]
    assert (shell, flag) == ("sh", "-c")
    return str(line)


def test_the_command_starts_a_node_and_the_pre_stop_hook_makes_it_leave(tmp_path: Path) -> None:
    """Run both commands on this machine, with a free port and local folders instead of mounts."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    keys = KeyDir(tmp_path / "keys")
    write_keys(keys.path, ["ringfence"], ["127.0.0.1"], ["ops:check,observe,admin"], days=2)
    rules = tmp_path / "rules"
    rules.mkdir()
    for name, text in BY_KIND["ConfigMap"]["data"].items():
        (rules / name).write_text(text, "utf-8")

    def localized(text: str) -> str:
        local = text.replace("/keys", str(keys.path)).replace("/rules", str(rules))
        local = local.replace("dns:ringfence:7101", f"dns:localhost:{port}")
        return local.replace("0.0.0.0", "127.0.0.1").replace(":7101", f":{port}")

    tools = tmp_path / "bin"
    tools.mkdir()
    script = tools / "ringfence"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m node.entry "$@"\n', "utf-8")
    script.chmod(0o755)
    environment = {
        **{name: value for name, value in os.environ.items() if "RINGFENCE" not in name},
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "POD_NAME": "ringfence-0",
        "POD_IP": "127.0.0.1",
    }
    log = tmp_path / "log"
    with log.open("wb") as log_file:
        node = subprocess.Popen(
            [localized(word) for word in NODE["command"]],
            stderr=log_file,
            env=environment,
        )
    try:
        deadline = time.monotonic() + 60
        while "view of 1 member" not in log.read_text("utf-8"):
            assert node.poll() is None, log.read_text("utf-8")
            assert time.monotonic() < deadline, log.read_text("utf-8")
            time.sleep(0.02)
        stopped = subprocess.run(
            ["sh", "-c", localized(pre_stop_command())],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert stopped.stderr == ""
        assert stopped.stdout.startswith("ringfence-0 has left")
        assert node.wait(20) == 0
    finally:
        node.send_signal(signal.SIGKILL)
        node.wait()
