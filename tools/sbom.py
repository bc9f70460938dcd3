"""Write the bill of materials in CycloneDX's JSON: the locked Python packages, and the Java
artifacts of the local parts.

    python tools/sbom.py build/sbom.json
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def python_packages() -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "cyclonedx_py",
        "requirements",
        "--pyproject",
        "pyproject.toml",
        "requirements.lock",
    ]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)  # type: ignore[no-any-return]


def java_artifacts() -> list[dict[str, Any]]:
    """Return each artifact once, though several sets may need it. Its purl is of type maven
    (https://github.com/package-url/purl-spec)."""
    sets = tomllib.loads((ROOT / "gateway/local/artifacts.lock").read_text())
    return [
        component(name, facts)
        for name, facts in sorted({k: v for files in sets.values() for k, v in files.items()}.items())
    ]


def component(coordinate: str, facts: dict[str, Any]) -> dict[str, Any]:
    group, artifact, version, *rest = coordinate.split(":")
    packaging = f"?type={rest[0]}" if rest else ""
    purl = f"pkg:maven/{group}/{artifact}@{version}{packaging}"
    return {
        "type": "library",
        "bom-ref": f"maven:{coordinate}",
        "group": group,
        "name": artifact,
        "version": version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": facts["sha256"]}],
    }


def main() -> None:
    bill = python_packages()
    bill["components"] += java_artifacts()
    path = Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(bill, indent=2) + "\n")
    print(f"{path}: {len(bill['components'])} components")


if __name__ == "__main__":
    main()
