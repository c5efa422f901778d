"""What a process starts with: no more is imported than it is about to use. By names: times depend on the machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

import silo

WHEN_USED = {"cloudpickle", "google.protobuf", "grpc", "numpy", "opentelemetry", "pydantic", "redis", "uvloop"}
"""Of others: what takes long to import."""
OF_A_SILO = {"silo.host", "silo.runtime", "silo.settings", "silo.surroundings"}
OF_A_CLIENT = {"silo.client", "silo.gateways"}


def _loaded_by(program: str) -> set[str]:
    """The names of the modules that a fresh process has after this."""
    program += "\nimport sys; print(*sys.modules)"
    return set(
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    )


@pytest.mark.parametrize(
    ("program", "needless"),
    [
        ("import silo", WHEN_USED | OF_A_SILO | OF_A_CLIENT | {"typer"}),
        ("import silo.cli", WHEN_USED | OF_A_SILO | OF_A_CLIENT | {"silo.configuration", "silo.dev_cluster"}),
        ("from silo import Client", WHEN_USED | OF_A_SILO | {"typer"}),
        ("import silo.serving", {"cloudpickle", "grpc", "numpy", "typer", "silo.cli", "silo.dev_cluster"}),
    ],
)
def test_a_process_imports_what_it_is_about_to_use_and_no_more(program: str, needless: set[str]) -> None:
    assert not _loaded_by(program) & needless


def test_a_warm_process_has_what_others_import_when_they_use_it() -> None:
    loaded = _loaded_by("from tests.support.warm_server import warm_up; warm_up()")
    assert loaded >= (WHEN_USED - {"cloudpickle", "numpy"}) | OF_A_SILO | OF_A_CLIENT | {"silo.dev_cluster"}


def test_the_face_has_all_its_names_whenever_they_are_imported() -> None:
    assert set(silo.__all__) <= set(dir(silo))
    assert all(getattr(silo, name) is not None for name in silo.__all__)
    misspelt = "Grian"
    with pytest.raises(AttributeError, match="no attribute 'Grian'"):
        getattr(silo, misspelt)
