"""What all tests share: no network, a cache of the session's own, and the real data where it is at hand."""

import os
import shutil
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import pytest  # noqa: E402

from lib import paths, preparing, slices, variants  # noqa: E402
from tests.browser import browser  # noqa: E402, F401

# The modules that take longest, so that two workers end at about the same time.
LONG = ("test_sweep.py", "test_real_sweep.py", "test_lab.py", "test_kernels.py", "test_cluster.py", "test_live.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest modules first; the others keep their order."""
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


@pytest.fixture(scope="session", autouse=True)
def session_cache(tmp_path_factory):
    """Vectors made by one test serve the others, and none are left behind."""
    folder = tmp_path_factory.mktemp("cache")
    os.environ["WORKBOOK_CACHE"] = str(folder)
    return folder


@pytest.fixture(scope="session")
def sample(tmp_path_factory) -> slices.Slice:
    """The sample slice, prepared once."""
    folder = tmp_path_factory.mktemp("sample") / "slice"
    preparing.prepare("sample", folder)
    return slices.Slice(folder)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real LongEval data; tests that need it are skipped by name where there is none."""
    folder = os.environ.get("WORKBOOK_REAL_DATA")
    if not folder:
        pytest.skip("WORKBOOK_REAL_DATA is not set: no real LongEval data at hand")
    return Path(folder).resolve()


@pytest.fixture(scope="session")
def embedded() -> variants.Profile:
    return variants.load_profile("embedded")


@pytest.fixture
def official(tmp_path, monkeypatch) -> Path:
    """A copy of the sample in the official layout, away from the home folder."""
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TIRA_INPUT_DATASET", raising=False)
    return Path(shutil.copytree(paths.SAMPLE, tmp_path / "official"))
