"""doctor and the loader agree on every odd and broken checkpoint of tests/cases, and load the right values.

TIESHARD_SHARED_CASES may name a directory of cases made by another generator of the same form; each becomes a test too.
"""

import itertools
import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
from running import ROOT, run

sys.path.insert(0, str(ROOT / "tests" / "cases"))

import make_cases

CASES = list(make_cases.CASES)
SHARED = pathlib.Path(os.environ["TIESHARD_SHARED_CASES"]) if os.environ.get("TIESHARD_SHARED_CASES") else None
SHARED_CASES = sorted(path.parent.name for path in SHARED.glob("*/case.json")) if SHARED else []


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A directory with every case."""
    directory = tmp_path_factory.mktemp("cases")
    for record in make_cases.CASES.values():
        make_cases.make(directory / record["id"], record)
    return directory


def bare(text):
    return "".join(text.split()).lower()


def strings_in(value):
    """Every string, key and number of a JSON document."""
    if isinstance(value, dict):
        return [*value, *itertools.chain.from_iterable(map(strings_in, value.values()))]
    if isinstance(value, list):
        return list(itertools.chain.from_iterable(map(strings_in, value)))
    return [str(value)]


def codes_of(findings, level):
    return [finding["code"] for finding in findings if finding["level"] == level]


def outcome(status, findings):
    if status == 0:
        return "warn" if codes_of(findings, "warning") else "ok"
    return "refuse" if status == 2 else f"exit status {status}"


class Doctor:
    def __init__(self, program, model, ranks, flags):
        self.done = run([program, "doctor", model, "--ranks", ranks, "--json", *split_rank(flags)[0]])
        assert self.done.stdout, self.done.stderr
        self.document = json.loads(self.done.stdout)
        # That a weight is zeros only doctor looks for: training may begin with them.
        self.findings = [finding for finding in self.document["findings"] if finding["code"] != "all-zero"]
        self.outcome = outcome(self.done.returncode, self.findings)
        self.errors = codes_of(self.findings, "error")
        self.warnings = codes_of(self.findings, "warning")
        self.said = bare("\n".join(strings_in(self.document)))


class Load:
    """`document` is what --json gave; nothing after a refusal, whose text is on stderr."""

    def __init__(self, program, model, ranks, flags, values):
        self.done = run([program, "load", model, "--ranks", ranks, "--json", "--values", values, *flags])
        self.document = json.loads(self.done.stdout) if self.done.returncode == 0 else None
        self.findings = self.document["findings"] if self.document else []
        self.outcome = outcome(self.done.returncode, self.findings)
        self.errors = re.findall(r"^error  .*\[([a-z0-9-]+)\]$", self.done.stderr, re.M)
        self.warnings = codes_of(self.findings, "warning")


def split_rank(flags):
    """Flags without --rank, which doctor has not; and those with it alone."""
    at = flags.index("--rank") if "--rank" in flags else len(flags)
    return flags[:at] + flags[at + 2:], flags[at:at + 2]


def entry_of(rank, name):
    return next(entry for entry in rank["ledger"] if name == entry["name"] or name in entry["aliases"])


def loaded_values(document, name):
    """The whole parameter from the parts of all ranks, flat; of one rank alone only what it holds."""
    parts = [entry_of(rank, name) for rank in document["per_rank"]]
    if any(len(part["values"]) < np.prod(part["shape"]) for part in parts):
        return [float(value) for value in parts[0]["values"]]  # too large to be put together: as far as the first row
    arrays = [np.array([float(value) for value in part["values"]]).reshape(part["shape"]) for part in parts
              if 0 not in part["shape"]]
    dim = parts[0]["dim"]
    return (arrays[0] if dim < 0 or len(arrays) == 1 else np.concatenate(arrays, axis=dim)).reshape(-1)


def check_values(document, after, whole):
    for expected in after:
        wanted = expected["first_values"]
        if whole:
            got = loaded_values(document, expected["tensor"])[:len(wanted)]
        else:  # a part of a table whose first row is longer than what is looked at
            got = [float(value) for value in entry_of(document["per_rank"][0], expected["tensor"])["values"]]
        assert list(got) == wanted[:len(got)] and len(got) > 0, expected["tensor"]


def check(program, directory, ranks):
    record = json.loads((directory / "case.json").read_text())
    flags = record.get("flags", [])
    doctor = Doctor(program, directory / "model", ranks, flags)
    whole = not split_rank(flags)[1]
    load = Load(program, directory / "model", ranks, flags, 100_000 if whole else 8)
    assert doctor.outcome == record["expect"], doctor.done.stdout
    assert load.outcome == record["expect"], load.done.stderr
    assert [part for part in record["must_name"] if bare(part) not in doctor.said] == [], doctor.done.stdout
    # The loader stops at the first error; doctor goes on, and has it first.
    assert load.errors == doctor.errors[:1]
    for finding in doctor.document["findings"]:
        assert all(finding[part] for part in ("code", "what", "where", "why", "fix")), finding
    if load.errors:  # word for word
        first = next(finding for finding in doctor.findings if finding["level"] == "error")
        said = [line.strip() for line in load.done.stderr.splitlines()]
        assert f"error  {first['what']} [{first['code']}]" in said, load.done.stderr
        # Of ranks that say the same load makes one message.
        for part in ("where", "why", "fix") if not first["where"].startswith("rank ") else ("why", "fix"):
            assert bare(f"{part}: {first[part]}") in bare(load.done.stderr), (first, load.done.stderr)
    if record["expect"] != "refuse":
        assert sorted(set(load.warnings)) == sorted(set(doctor.warnings))
        check_values(load.document, record.get("after", []), whole)
    return record, doctor


@pytest.mark.parametrize("name", CASES)
def test_doctor_and_the_loader_agree(tieshard, made, name):
    for ranks in make_cases.CASES[name]["ranks"]:
        record, doctor = check(tieshard, made / name, ranks)
        if record["expect"] == "refuse":
            assert doctor.errors == [record["code"]]
        else:
            assert set(doctor.warnings) <= {record["code"], "unknown-architecture", "unused-tensor"}
            assert record["code"] is None or record["code"] in doctor.warnings


@pytest.mark.parametrize("name", SHARED_CASES)
def test_doctor_and_the_loader_agree_on_shared_cases(tieshard, name):
    check(tieshard, SHARED / name, 2)


def test_there_are_cases_of_every_kind():
    kinds = {record["kind"] for record in make_cases.CASES.values()}
    assert kinds == {"header", "directory", "names", "ties", "values"}
    assert len(CASES) >= 110
    assert {record["expect"] for record in make_cases.CASES.values()} == {"ok", "warn", "refuse"}


def test_cases_are_the_same_each_time(tmp_path):
    program = ROOT / "tests" / "cases" / "make_cases.py"
    for run_number in ("a", "b"):
        subprocess.run([sys.executable, program, tmp_path / run_number, "mxfp4-experts", "two-shards-and-an-index"],
                       check=True, capture_output=True)
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert len(files) > 5
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file
