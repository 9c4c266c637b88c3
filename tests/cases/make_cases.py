#!/usr/bin/env python3
"""Writes odd and broken checkpoints, each with what is to be said of it.

    make_cases.py DIRECTORY [CASE...]

DIRECTORY/<case>/model is the checkpoint, DIRECTORY/<case>/case.json says:

  id, kind, about  the case
  expect           "ok" (no finding above a note), "warn" (it loads), "refuse"
  code             of the error, or of the warning
  must_name        what the findings have to say, white space and letter case aside
  flags, ranks     how doctor and load are called
  after            [{"tensor", "first_values"}]: what the load has to give, the first elements in row-major order

Each case is a function of a cases_*.py file here; see draft.py for what it can do.
"""

import argparse
import json
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import cases_directory  # noqa: F401  (importing registers the cases)
import cases_header  # noqa: F401
import cases_names  # noqa: F401
import cases_ties  # noqa: F401
import cases_values  # noqa: F401
from draft import CASES, Draft


def make(directory, record):
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "model").mkdir(parents=True)
    build = record["build"]
    draft = getattr(build, "draft", Draft)(directory / "model")
    build(draft)
    draft.write()
    said = {key: value for key, value in record.items() if key != "build"}
    said |= {"must_name": draft.must_name, "after": draft.after}
    (directory / "case.json").write_text(json.dumps(said, indent=1, ensure_ascii=False) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    arguments = parser.parse_args()
    unknown = set(arguments.cases) - set(CASES)
    if unknown:
        parser.error(f"there is no case {', '.join(sorted(unknown))}")
    chosen = [record for name, record in CASES.items() if not arguments.cases or name in arguments.cases]
    for record in chosen:
        make(arguments.directory / record["id"], record)
    print(f"{len(chosen)} cases in {arguments.directory}")


if __name__ == "__main__":
    main()
