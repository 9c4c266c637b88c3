"""Rules for every file of the project that a reader relies on."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CODE = {".h", ".cpp", ".py", ".cmake", ".sh"}
MAX_LINES = 600
NO_NAME = re.compile(r"(^|_)(utils?|helpers?|common|misc|stuff)(_|$)")
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")


NOT_OURS = {"build", ".venv", ".git", ".pytest_cache", "__pycache__"}


def walk(folder):
    for path in sorted(folder.iterdir()):
        if path.name in NOT_OURS:
            continue
        if path.is_dir():
            yield from walk(path)
        else:
            yield path.relative_to(ROOT)


FILES = list(walk(ROOT))
SOURCES = [path for path in FILES if path.suffix in CODE]


def test_there_are_sources():
    assert len(SOURCES) > 30


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_a_file_can_be_read_in_one_sitting(path):
    assert len((ROOT / path).read_text().splitlines()) <= MAX_LINES


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_nothing_is_left_unfinished(path):
    assert not UNFINISHED.search((ROOT / path).read_text())


def test_file_and_folder_names_say_what_is_inside():
    assert [str(path) for path in FILES if any(NO_NAME.search(pathlib.Path(part).stem) for part in path.parts)] == []


@pytest.mark.parametrize("path", [p for p in SOURCES if p.suffix == ".h"], ids=str)
def test_a_header_begins_with_its_path_its_purpose_and_its_place_in_the_flow(path):
    text = (ROOT / path).read_text()
    assert text.startswith(f"// {path}\n//\n// ")
    comment = text.split("\n#pragma once", 1)[0]
    assert re.search(r"^// Flow:", comment, re.M)


def test_the_readme_begins_with_two_commands():
    readme = (ROOT / "README.md").read_text()
    assert "make demo" in readme and "make test" in readme


def test_the_readme_shows_the_example_that_is_compiled():
    readme = (ROOT / "README.md").read_text()
    shown = re.search(r"<!-- examples/(\w+\.cpp) -->\n```cpp\n(.*?)```", readme, re.S)
    assert shown, "README.md has no code block after a marker with the name of its example"
    source = (ROOT / "examples" / shown.group(1)).read_text()
    body = re.search(r"// README: begin\n(.*?) *// README: end\n", source, re.S).group(1)
    lines = [line.removeprefix("  ") for line in body.splitlines()]
    assert shown.group(2).splitlines() == lines


@pytest.mark.parametrize("path", [p for p in FILES if p.suffix == ".md"], ids=str)
def test_links_between_documents_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / path).read_text()):
        assert (ROOT / path.parent / target).exists(), f"{path}: {target}"
