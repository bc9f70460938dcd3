"""The Kubernetes manifests are consistent with each other, with the image, and with the
settings."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config.settings import load_settings

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "deploy/kubernetes"


def manifest(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text())
    return found


def test_the_parts_fit_each_other() -> None:
    base, deployment, service = (manifest(f"{name}.yaml") for name in ("kustomization", "deployment", "service"))
    for file in (*base["resources"], *base["configMapGenerator"][0]["files"]):
        assert (FOLDER / file).exists()
    spec = deployment["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == service["spec"]["selector"] == labels
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    (configured,) = [volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume]
    assert configured == base["configMapGenerator"][0]["name"]
    user = re.search(r"--uid (\d+)", (ROOT / "Dockerfile").read_text())
    assert user is not None and pod["securityContext"]["runAsUser"] == int(user[1])


def test_the_settings_are_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (container,) = manifest("deployment.yaml")["spec"]["template"]["spec"]["containers"]
    arguments = container["args"]
    dsn = tmp_path / "dsn"
    dsn.write_text("postgresql://walgate@db/shop\n")
    (secret,) = [each["name"] for each in container["env"]]
    monkeypatch.setenv(secret, str(dsn))
    settings = load_settings(FOLDER / Path(arguments[arguments.index("--config") + 1]).name)
    (port,) = container["ports"]
    assert settings.http.port == port["containerPort"] == manifest("service.yaml")["spec"]["ports"][0]["port"]
    assert settings.http.host == "0.0.0.0"
    for probe, path in (("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}


@pytest.mark.parametrize("name", ["deployment", "service"])
def test_they_are_what_kubernetes_takes(name: str) -> None:
    try:
        schemas: Any = importlib.import_module("kubernetes_validate")
    except ImportError:
        pytest.skip("kubernetes-validate is not installed (PyPI); the parts were compared without it")
    schemas.validate(manifest(f"{name}.yaml"), schemas.latest_version(), strict=True)


def test_the_pods_are_scraped_under_the_name_that_the_rules_expect() -> None:
    """The Prometheus Operator names a job after the label `jobLabel` of the pods."""
    component, monitor = manifest("prometheus/kustomization.yaml"), manifest("prometheus/podmonitor.yaml")
    assert component["kind"] == "Component" and component["resources"] == ["podmonitor.yaml"]
    template = manifest("deployment.yaml")["spec"]["template"]
    spec = monitor["spec"]
    assert spec["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    rules = (ROOT / "deploy/monitoring/alerts.yml").read_text()
    assert f'job="{template["metadata"]["labels"][spec["jobLabel"]]}"' in rules
    (container,) = template["spec"]["containers"]
    (endpoint,) = spec["podMetricsEndpoints"]
    assert endpoint["port"] in {port["name"] for port in container["ports"]} and endpoint["path"] == "/metrics"


def test_gateways_in_one_namespace_would_be_mixed_up() -> None:
    """A nameSuffix changes no label, so every selector would match the pods of all gateways."""
    documented = (ROOT / "docs/kubernetes.md").read_text()
    assert "nameSuffix" not in documented and "one namespace for each" in documented


def test_the_idle_pod_is_that_of_the_gateway_without_its_program_and_its_probes() -> None:
    component = manifest("repair/kustomization.yaml")
    (patch,) = component["patches"]
    assert component["kind"] == "Component"
    key, _, value = patch["target"]["labelSelector"].partition("=")
    deployment, idle = manifest("deployment.yaml"), manifest(f"repair/{patch['path']}")
    assert deployment["metadata"]["labels"][key] == value and patch["target"]["kind"] == deployment["kind"]
    (gateway,), (changed,) = (each["spec"]["template"]["spec"]["containers"] for each in (deployment, idle))
    assert changed.pop("name") == gateway["name"] and changed.pop("command") == ["sleep", "infinity"]
    assert changed.keys() == {"args", *(name for name in gateway if name.endswith("Probe"))}
    assert not any(changed.values())
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}  # the gateway has ended before the idle pod begins


def test_the_overlays_of_the_page_are_built_and_differ_in_the_container_alone(tmp_path: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed; the manifests were compared without it")
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    page = (ROOT / "docs/kubernetes.md").read_text()
    for path, text in re.findall(r"```yaml\n# (\S+)\n(.*?)```", page, re.S):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text(text)
    shutil.copy(FOLDER / "walgate.toml", tmp_path / "overlay")

    def built(name: str) -> dict[str, Any]:
        made = subprocess.run([kubectl, "kustomize", str(tmp_path / name)], capture_output=True, check=True)
        return {each["kind"]: each for each in yaml.safe_load_all(made.stdout)}

    gateway, idle = built("overlay"), built("repair")
    (container,), (sleeping,) = (
        each["Deployment"]["spec"]["template"]["spec"].pop("containers") for each in (gateway, idle)
    )
    assert container["image"] == "registry.example/walgate:1"
    for name in ("args", "livenessProbe", "readinessProbe"):
        del container[name]
    assert sleeping == container | {"command": ["sleep", "infinity"]}
    for each in (gateway, idle):
        del each["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert gateway == idle
