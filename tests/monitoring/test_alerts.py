"""Alerting rules: what they raise in situations, whether what they ask for exists, and whether
somebody can read what to do."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from gateway.observe import metrics
from gateway.observe.status_board import StatusBoard
from tests.monitoring.prometheus import NAME, firing, labels_of, read_series, seconds

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "monitoring"
ALERTS: list[dict[str, Any]] = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
SITUATIONS: dict[str, Any] = yaml.safe_load((FOLDER / "alerts_test.yml").read_text())
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana/dashboards/walgate.json").read_text())
OF_PROMETHEUS = {"up", "ALERTS"}


def asked_for(expression: str) -> set[str]:
    without_labels = re.sub(r"\{[^}]*\}", "", expression)
    return set(re.findall(r"\b(?:walgate_\w+|up|ALERTS)\b", without_labels))


def exported() -> set[str]:
    metrics.show(StatusBoard())
    return {family.name + "_total" * (family.type == "counter") for family in metrics.REGISTRY.collect()}


def dashboard_expressions() -> list[str]:
    asked = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return [*asked, *(one["expr"] for one in DASHBOARD["annotations"]["list"])]


@pytest.mark.parametrize("situation", SITUATIONS["tests"], ids=lambda one: str(one["name"]))
def test_situations_raise_their_alerts_and_no_others(situation: dict[str, Any]) -> None:
    series = read_series(situation["input_series"], seconds(situation["interval"]))
    for check in situation["promql_expr_test"]:
        assert check["expr"] == 'ALERTS{alertstate="firing"}'
        found = firing(ALERTS, series, seconds(check["eval_time"]), seconds(SITUATIONS["evaluation_interval"]))
        expected = {
            frozenset(pair for pair in labels_of(sample["labels"]) if pair[0] not in (NAME, "alertstate"))
            for sample in check["exp_samples"]
        }
        assert found == expected, check["eval_time"]


def test_each_alert_is_raised_in_a_situation() -> None:
    raised = {name for one in SITUATIONS["tests"] for name in re.findall(r'alertname="(\w+)"', str(one))}
    assert raised == {rule["alert"] for rule in ALERTS} and len(ALERTS) >= 10


def test_promtool_comes_to_the_same_verdict() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus); the situations were played without it")
    for arguments in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        judged = subprocess.run([promtool, *arguments], cwd=FOLDER, capture_output=True, text=True, check=False)
        assert judged.returncode == 0, judged.stdout + judged.stderr


def test_what_rules_and_dashboard_ask_for_exists() -> None:
    asked = {
        name
        for expression in [*(rule["expr"] for rule in ALERTS), *dashboard_expressions()]
        for name in asked_for(expression)
    }
    assert asked - OF_PROMETHEUS <= exported()
    assert len(asked) > 15
    labels = DASHBOARD["templating"]["list"][0]["query"]["query"]
    assert asked_for(labels) <= exported()
    for expression in dashboard_expressions():
        promql_parser.parse(expression.replace("$instance", ".*"))


def test_each_alert_has_a_section_that_says_what_to_do() -> None:
    page = (ROOT / "docs/alerts.md").read_text()
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.S | re.M))
    assert list(sections) == [rule["alert"] for rule in ALERTS]
    for rule in ALERTS:
        assert len(sections[rule["alert"]].strip()) > 20
        assert rule["annotations"]["runbook"] == f"docs/alerts.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_compose_mounts_what_is_here() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert {name for name, service in services.items() if service.get("profiles") == ["monitoring"]} == {
        "prometheus",
        "grafana",
    }
    for service in services.values():
        for volume in service.get("volumes", []):
            if volume.startswith("./"):
                assert (ROOT / volume.split(":")[0]).exists(), volume


def test_each_service_of_compose_has_a_memory_limit() -> None:
    """The heap of a Java process fits into it, with as much again for the rest of the process."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    limits = {name: _megabytes(service["mem_limit"]) for name, service in services.items()}
    for name, service in services.items():
        heaps = [_megabytes(text) for text in re.findall(r"-Xmx(\d+[mg])", str(service))]
        assert all(1.5 * heap <= limits[name] for heap in heaps), name
    container = yaml.safe_load((ROOT / "deploy/kubernetes/deployment.yaml").read_text())["spec"]["template"]["spec"]
    assert f"{limits['gateway']}Mi" == container["containers"][0]["resources"]["limits"]["memory"]


def _megabytes(text: str) -> int:
    return int(text[:-1]) * {"m": 1, "g": 1024}[text[-1]]


def test_prometheus_asks_the_services_of_compose() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    settings = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    asked = {job["job_name"]: job["static_configs"][0]["targets"] for job in settings["scrape_configs"]}
    mirror = dict(itertools.pairwise(services["mirror"]["command"]))["--http"]
    assert asked == {
        "walgate": [f"gateway:{services['gateway']['environment']['WALGATE_HTTP__PORT']}"],
        "walgate-mirrors": [f"mirror:{mirror.rpartition(':')[2]}"],
    }
    assert set(settings["rule_files"]) <= mounted(services["prometheus"])


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    grafana = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["grafana"]
    (source,) = provisioned("datasources/prometheus.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    shown = [*DASHBOARD["panels"], *DASHBOARD["annotations"]["list"], *DASHBOARD["templating"]["list"]]
    shown += [target for panel in DASHBOARD["panels"] for target in panel["targets"]]
    assert {one["datasource"]["uid"] for one in shown} == {source["uid"]}
    (provider,) = provisioned("dashboards/walgate.yml")["providers"]
    assert {provider["options"]["path"], "/etc/grafana/provisioning"} == mounted(grafana)
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (str(home.parent), home.name) == (provider["options"]["path"], "walgate.json")


def mounted(service: dict[str, Any]) -> set[str]:
    """Paths in the container at which files of the project are."""
    return {volume.split(":")[1] for volume in service["volumes"] if volume.startswith("./")}


def provisioned(path: str) -> Any:
    return yaml.safe_load((FOLDER / "grafana/provisioning" / path).read_text())
