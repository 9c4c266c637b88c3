"""The Python module as the release build made it, for all tests of it: TIESHARD_PYTHON_DIR says where (default build/python).

A module that is missing fails the tests: it never skips them.
"""

import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULE_DIR = pathlib.Path(os.environ.get("TIESHARD_PYTHON_DIR", ROOT / "build" / "python"))

assert list((MODULE_DIR / "tieshard").glob("_core*.so")), f"{MODULE_DIR}/tieshard has no _core: build it (make build), or set TIESHARD_PYTHON_DIR"
sys.path.insert(0, str(MODULE_DIR))
os.environ["PYTHONPATH"] = os.pathsep.join([str(MODULE_DIR), *filter(None, [os.environ.get("PYTHONPATH")])])  # of ranks


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Folder of tiny checkpoints, saved by transformers: see module_models.py."""
    import module_models

    folder = tmp_path_factory.mktemp("models")
    module_models.save_all(folder)
    return folder
