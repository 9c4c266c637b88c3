"""docs/errors.md has one complete entry for each code of error_codes.h, in the same order."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
CODE = re.compile(r'X\(k\w+,\s*"([a-z0-9-]+)",\s*"([^"]+)"\)')
ENTRY = re.compile(r"^## (\S+)\n(.*?)(?=^#|\Z)", re.M | re.S)


def codes():
    return [code for code, _ in CODE.findall((ROOT / "tieshard/core/base/error_codes.h").read_text())]


def entries():
    return ENTRY.findall((ROOT / "docs/errors.md").read_text())


def test_entries_are_the_codes_in_the_order_of_the_table():
    assert len(codes()) > 50
    assert [name for name, _ in entries()] == codes()


def test_no_code_stands_twice():
    assert len(set(codes())) == len(codes())


def test_each_entry_says_cause_remedy_and_origin():
    for name, text in entries():
        for part in ("- **Cause:** ", "- **Do:** ", "- **From:** "):
            assert part in text, f"{name} lacks {part!r}"
        origin = text.split("- **From:** ")[1]
        assert re.search(r"InputError|UsageError|PeerError|InternalError|[Ww]arning|[Nn]ote", origin), f"{name}: {origin}"
