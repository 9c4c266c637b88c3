"""The Python module as the release build made it, for all tests of it, and the checkpoints that they share."""

import module_location  # noqa: F401: puts the module onto sys.path
import pytest


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Folder of tiny checkpoints, saved by transformers: see module_models.py."""
    import module_models

    folder = tmp_path_factory.mktemp("models")
    module_models.save_all(folder)
    return folder
