"""The documents that list the families list all of them, in the order of the code."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def known_families():
    text = (ROOT / "tieshard" / "core" / "families" / "known_families.h").read_text()
    return re.findall(r"^  X\((\w+)\)", text, re.M)


@pytest.mark.parametrize("document", ["README.md", "docs/new_model.md"])
def test_a_document_lists_every_family(document):
    text = re.sub(r" \([^)]*\)", "", (ROOT / document).read_text())
    assert len(known_families()) > 10
    assert ", ".join(known_families()) in text


def test_a_family_lies_in_a_file_of_its_name():
    for family in known_families():
        text = (ROOT / "tieshard" / "core" / "families" / f"{family}.cpp").read_text()
        assert f"const Family& {family}_family() {{" in text


def test_the_example_of_a_family_is_the_code():
    example = re.search(r"```cpp\n(.*?)```", (ROOT / "docs" / "new_model.md").read_text(), re.S).group(1)
    code = (ROOT / "tieshard" / "core" / "families" / "qwen2.cpp").read_text().splitlines()
    assert len(example.splitlines()) > 10
    assert [line for line in example.splitlines() if line not in code] == []
