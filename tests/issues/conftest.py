"""The three issues as PyTorch users meet them, on the real peers. They use what the tests of the Python module have."""

import sys
from pathlib import Path

for folder in ("module", "logs"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / folder))

import module_location  # noqa: E402,F401: puts the module onto sys.path

import pytest  # noqa: E402


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Folder of tiny checkpoints, saved by transformers: see module_models.py."""
    import module_models

    folder = tmp_path_factory.mktemp("models")
    module_models.save_all(folder)
    return folder
