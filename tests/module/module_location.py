"""Where the release build has put the Python module: TIESHARD_PYTHON_DIR, by default build/python.

A module that is missing fails the tests: it never skips them.
"""

import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULE_DIR = pathlib.Path(os.environ.get("TIESHARD_PYTHON_DIR", ROOT / "build" / "python"))

assert list((MODULE_DIR / "tieshard").glob("_core*.so")), f"{MODULE_DIR}/tieshard has no _core: build it (make build), or set TIESHARD_PYTHON_DIR"
if str(MODULE_DIR) not in sys.path:
    sys.path.insert(0, str(MODULE_DIR))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(MODULE_DIR), *filter(None, [os.environ.get("PYTHONPATH")])])  # of ranks
