"""ARCHITECTURE.md names the test that holds each invariant: each of them exists, and each room is in its table."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "ARCHITECTURE.md").read_text()


def rows_of_invariants():
    return re.findall(r"^\| (\d+) \| \*\*.*\| (.*) \|$", DOCUMENT, re.M)


def cpp_tests():
    """Names as ctest has them: <room>.<suite>.<test>."""
    for path in (ROOT / "tests").rglob("*_test.cpp"):
        room = path.parent.relative_to(ROOT / "tests").as_posix()
        for suite, name in re.findall(r"^TEST(?:_[FP])?\((\w+),\s*(\w+)\)", path.read_text(), re.M):
            yield f"{room}.{suite}.{name}"


def python_tests():
    for path in (ROOT / "tests").rglob("test_*.py"):
        yield from re.findall(r"^def (test_\w+)\(", path.read_text(), re.M)


def exists(name, tests):
    if "/" in name and "." not in name.rsplit("/", 1)[0] and (ROOT / name).exists():
        return True
    if name.endswith("*"):
        return any(test.startswith(name[:-1]) for test in tests)
    return name in tests


def test_every_invariant_names_tests_that_exist():
    tests = {*cpp_tests(), *python_tests()}
    rows = rows_of_invariants()
    assert [number for number, _ in rows] == [str(number) for number in range(1, 10)]
    for number, held_by in rows:
        names = [name for name in re.findall(r"`([^`]+)`", held_by) if not name.startswith("make ")]
        assert names, f"invariant {number} is held by no test"
        assert [name for name in names if not exists(name, tests)] == [], f"invariant {number}"


def test_every_room_is_in_the_table():
    rooms = re.findall(r"^\s*tieshard_room\((\S+)", (ROOT / "CMakeLists.txt").read_text(), re.M)
    table = re.findall(r"^\| `([\w/]+)` \|", DOCUMENT, re.M)
    assert table == rooms
