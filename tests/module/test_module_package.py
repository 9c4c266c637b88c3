"""What the package says of itself: stubs, its command line, and what it needs at import."""

import os
import subprocess
import sys

import pytest
from module_location import MODULE_DIR, ROOT


def run(*command, **variables):
    return subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, env={**os.environ, **variables})


def test_the_stubs_are_those_of_the_library(tmp_path):
    made = run("-m", "nanobind.stubgen", "-q", "-P", "-m", "tieshard._core", "-o", tmp_path / "_core.pyi")
    assert made.returncode == 0, made.stderr
    assert (ROOT / "python" / "tieshard" / "_core.pyi").read_text() == (tmp_path / "_core.pyi").read_text(), \
        "make it anew: python -m nanobind.stubgen -P -m tieshard._core -o python/tieshard/_core.pyi"
    assert (MODULE_DIR / "tieshard" / "py.typed").exists()


def test_import_needs_neither_torch_nor_numpy():
    script = "import sys; sys.modules.update(torch=None, numpy=None); import tieshard; print(tieshard.__version__)"
    done = run("-c", script)
    assert done.returncode == 0, done.stderr


def test_the_command_line_is_the_program_named_or_an_error_that_says_how_to_get_it(tmp_path):
    program = tmp_path / "tieshard"
    program.write_text("#!/bin/sh\necho \"$@\"; exit 5\n")
    program.chmod(0o755)
    done = run("-m", "tieshard", "doctor", "a b", TIESHARD_BIN_DIR=str(tmp_path))
    assert (done.returncode, done.stdout) == (5, "doctor a b\n")
    absent = run("-m", "tieshard", "doctor", "x", TIESHARD_BIN_DIR=str(tmp_path / "absent"))
    assert absent.returncode == 2 and "[file-not-found]" in absent.stderr and "pip install ." in absent.stderr


@pytest.mark.parametrize("name", ["load", "Ledger", "open", "plan", "doctor", "TieRegistry", "ShardPlan", "errors", "save", "resume",
                                  "export_hf"])
def test_the_package_has_what_its_document_names(name):
    import tieshard

    assert hasattr(tieshard, name) and name in tieshard.__all__


def test_a_module_of_the_package_never_takes_the_place_of_a_function():
    """A submodule's import sets its name in the package: none that another one imports may have a function's name."""
    script = ("import tieshard.saving, tieshard.resuming, tieshard.exporting\n"
              "for name in ('load', 'save', 'resume', 'export_hf', 'open', 'plan'): assert callable(getattr(tieshard, name)), name")
    done = run("-c", script)
    assert done.returncode == 0, done.stderr
