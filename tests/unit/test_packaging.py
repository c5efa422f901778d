"""What is installed: one import package with its types, and every module of it once."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LINKED = ("directory", "migration", "placement")


def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def _run(*arguments: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # it may name the tree
    return subprocess.run([*map(str, arguments)], cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of what belongs into it, so that no build leaves anything in the tree."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "LICENSE", "README.md", "silo", *LINKED):
        # By cp, which keeps the links as links.
        copied = _run("cp", "-a", ROOT / name, source)
        assert copied.returncode == 0, copied.stderr
    target = tmp_path_factory.mktemp("wheel")
    built = _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", target, cwd=source)
    assert built.returncode == 0, built.stderr
    (path,) = target.glob("*.whl")
    return path


def test_every_package_is_listed_by_name_and_exists() -> None:
    found = {"silo"}
    for folder in (ROOT / "silo", *(ROOT / name for name in LINKED)):
        for init in folder.rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT).parts
            found.add(".".join(parts if parts[0] == "silo" else ("silo", *parts)))
    assert set(_project()["tool"]["setuptools"]["packages"]) == found


def test_the_three_folders_are_links_inside_the_package() -> None:
    for name in LINKED:
        link = ROOT / "silo" / name
        assert link.is_symlink()
        assert str(link.readlink()) == f"../{name}"


@pytest.mark.parametrize("name", LINKED)
def test_the_three_packages_refuse_any_other_name(name: str) -> None:
    refused = _run(sys.executable, "-c", f"import {name}")
    assert refused.returncode != 0
    assert f"import this package as 'silo.{name}', not as '{name}'" in refused.stderr


def test_the_wheel_installs_nothing_but_silo(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.partition("/")[0] for name in names}
    assert top == {"silo", f"grain_silo-{_project()['project']['version']}.dist-info"}


def test_the_wheel_has_every_module_and_the_types(wheel: Path) -> None:
    installed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("silo/")}
    modules = {
        str(Path("silo") / path.relative_to(ROOT / "silo"))
        for folder in ("", *LINKED)
        for path in (ROOT / "silo" / folder).rglob("*.py*")
        if path.suffix in (".py", ".pyi")
    }
    assert installed == {*modules, "silo/py.typed"}


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    (name,) = (name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA"))
    told = metadata.PathDistribution(zipfile.Path(wheel, name.removesuffix("METADATA"))).metadata
    assert told["Name"] == "grain-silo"
    assert told["Requires-Python"] == ">=3.11"
    assert told["License-Expression"] == "Apache-2.0"
    assert set(told.get_all("Provides-Extra") or ()) == {"cloudpickle", "embedded", "numpy", "otel", "peers", "plots"}


@pytest.mark.slow
@pytest.mark.process
def test_the_wheel_works_without_the_tree(wheel: Path, tmp_path: Path) -> None:
    """In an environment of its own, which sees our libraries but neither the tree nor its editable installation."""
    venv.create(tmp_path / "environment", with_pip=False)
    python = tmp_path / "environment" / "bin" / "python"
    libraries = metadata.distribution("msgspec").locate_file("")
    (site,) = (tmp_path / "environment").glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    # As a plain path its .pth files, and so an editable installation, are not followed.
    (site / "libraries.pth").write_text(f"{libraries}\n", encoding="utf-8")
    told = _run(python, "-c", "import silo.cli, silo.placement.policy; print(silo.cli.__file__)", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert told.stdout.strip() == str(site / "silo" / "cli.py")
    shown = _run(python, "-m", "silo", "config", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "lease.lease_s" in shown.stdout


def test_the_generated_code_runs_on_the_oldest_protobuf_that_is_allowed() -> None:
    compiler = None
    for line in (ROOT / "silo/wire/v1/link_pb2.py").read_text(encoding="utf-8").splitlines():
        if line.startswith("# Protobuf Python Version: "):
            compiler = line.rpartition(" ")[2]
    (bound,) = (each for each in _project()["project"]["dependencies"] if each.startswith("protobuf"))
    assert bound.startswith(f"protobuf>={compiler},")
