"""docs/errors.md has one complete entry for each code of error_codes.h, in the same order."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
CODE = re.compile(r'X\((k\w+),\s*"([a-z0-9-]+)",\s*"[^"]+"\)')
ENTRY = re.compile(r"^## (\S+)\n(.*?)(?=^#|\Z)", re.M | re.S)


def table():
    """(enumerator, code) in the order of the table."""
    return CODE.findall((ROOT / "tieshard/core/base/error_codes.h").read_text())


def codes():
    return [code for _, code in table()]


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


def rooms_that_use():
    """{code: rooms whose sources name its enumerator}."""
    rooms = {code: set() for code in codes()}
    for path in (ROOT / "tieshard").rglob("*.[hc]*"):
        used = set(re.findall(r"\bCode::(k\w+)", path.read_text()))
        for enumerator, code in table():
            if enumerator in used:
                rooms[code].add(path.parent.relative_to(ROOT / "tieshard").as_posix())
    return rooms


def test_each_code_is_used():
    assert [code for code, rooms in rooms_that_use().items() if not rooms] == []


def test_an_entry_names_only_rooms_that_use_its_code():
    rooms = rooms_that_use()
    for name, text in entries():
        named = set(re.findall(r"`((?:core|runtime)/\w+)`", text.split("- **From:** ")[1]))
        assert named <= rooms[name], f"{name}: {named - rooms[name]}"
