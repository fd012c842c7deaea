import re
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lib import paths

# A package's place belongs to the machine's own settings, so that a mirror or an offline index serves as well.
PLACES = re.compile(
    r"\w+://|\bgit\+|\bfile:|--(?:extra-)?index-url|--find-links|--trusted-host|--proxy|"
    r"\b(?:pypi|pythonhosted|pytorch|anaconda|conda-forge|github|gitlab|huggingface)\.(?:org|com|io|co)\b|"
    r"\b\d{1,3}(?:\.\d{1,3}){3}\b|\blocalhost\b",
    re.IGNORECASE,
)


def text_of(name: str) -> str:
    return (paths.PROJECT / name).read_text(encoding="utf-8")


def pyproject() -> dict:
    return tomllib.loads(text_of("pyproject.toml"))


def declared() -> list[Requirement]:
    """What the project needs to be built, to run and to be tested."""
    groups = pyproject()["project"]["optional-dependencies"].values()
    needed = [*pyproject()["build-system"]["requires"], *pyproject()["project"]["dependencies"]]
    return [Requirement(line) for line in [*needed, *(line for group in groups for line in group)]]


def locked(name: str = "requirements.lock") -> dict[str, str]:
    lines = [line.split("#")[0].strip() for line in text_of(name).splitlines()]
    pins = [re.fullmatch(r"([A-Za-z0-9._-]+)==([^\s;=]+)(?:\s*;.*)?", line) for line in lines if line]
    assert all(pins), f"a line of {name} is no exact pin"
    return {canonicalize_name(pin[1]): pin[2] for pin in pins}


def environment() -> dict:
    return yaml.safe_load(text_of("environment.yml"))


def test_the_environment_names_python_3_11():
    named = [line for line in environment()["dependencies"] if isinstance(line, str)]
    pythons = [line for line in named if re.fullmatch(r"python\b.*", line)]
    assert len(pythons) == 1
    assert re.fullmatch(r"python\s*={1,2}\s*3\.11(?:\.\*|\.\d+)?", pythons[0])
    assert any(re.fullmatch(r"pip\b.*", line) for line in named)


def test_the_environment_installs_the_lock_and_then_the_project():
    pip = [part["pip"] for part in environment()["dependencies"] if isinstance(part, dict)]
    assert pip == [["-r requirements.lock", "-e ."]]


def test_the_project_wants_the_same_python():
    assert pyproject()["project"]["requires-python"] == ">=3.11,<3.12"


def test_every_dependency_is_pinned_in_the_lock_at_a_version_it_allows():
    pins = locked("requirements-local-llm.lock") | locked("requirements-backends.lock") | locked()
    wanted = {canonicalize_name(requirement.name): requirement for requirement in declared()}
    assert sorted(wanted.keys() - pins.keys()) == []
    assert [name for name, requirement in wanted.items() if not requirement.specifier.contains(pins[name])] == []


def test_the_lock_names_each_package_once():
    names = [canonicalize_name(line.split("==")[0]) for line in text_of("requirements.lock").splitlines() if "==" in line]
    assert sorted(names) == sorted(set(names))
    assert "candidate-constrained-rag-workbook" not in names


def test_torch_is_the_version_that_is_at_hand_without_its_build():
    assert locked()["torch"] == "2.13.0"


@pytest.mark.parametrize(
    "name",
    [
        "requirements.lock",
        "requirements-backends.lock",
        "requirements-local-llm.lock",
        "environment.yml",
        "pyproject.toml",
        "Makefile",
    ],
)
def test_no_address_of_an_index_or_a_host_stands_in_the_files_of_the_set_up(name):
    assert [line for line in text_of(name).splitlines() if PLACES.search(line)] == []
