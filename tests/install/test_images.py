"""The images that the project builds on are named exactly."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")


def test_the_base_image_has_a_digest() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    (base,) = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", dockerfile, re.MULTILINE)
    assert DIGEST.search(base)
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", dockerfile, re.MULTILINE))
    assert set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)) - stages == {"${PYTHON_IMAGE}"}


def test_what_the_images_copy_is_not_ignored() -> None:
    """A wheel without a file that it should include is built without a word."""
    ignored = (ROOT / ".dockerignore").read_text().split()
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    copied = {name.rstrip("/") for line in lines for name in line.split()}
    assert [name for name in copied if not {f"!{name}", f"!{name.partition('/')[0]}"} & set(ignored)] == []
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert copied >= set(wheel["only-include"])


def test_each_stage_that_copies_the_gateway_copies_what_it_imports() -> None:
    """`gateway` imports `schemas`; a stage without it fails only when the image is built."""
    stages = re.split(r"^FROM ", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    copying = [stage for stage in stages if "COPY gateway/" in stage]
    assert len(copying) == 2 and all("COPY schemas/" in stage for stage in copying)


def test_every_service_has_an_exact_version() -> None:
    """A variable may name a copy in another registry; its default has a digest."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    images = {service["image"] for service in services.values() if "build" not in service}
    defaults = {re.sub(r"^\$\{[A-Z]+_IMAGE:-(.+)\}$", r"\1", image) for image in images}
    assert len(defaults) == 5 and [image for image in defaults if not DIGEST.search(image)] == []
    assert [image for image in defaults if not re.search(r":v?\d+(\.\d+)+@", image)] == []


def test_the_gateway_of_compose_logs_in_as_the_role_that_is_created_for_it() -> None:
    environment = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["gateway"]["environment"]
    role = re.search(r"ROLE (\w+) .*PASSWORD '(\w+)'", (ROOT / "deploy/compose/gateway-role.sql").read_text())
    assert role is not None
    assert environment["WALGATE_SOURCE__DSN"].startswith(f"postgresql://{role[1]}:{role[2]}@")
