"""Rules for every file of the project that a reader relies on."""

import pathlib
import re

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


def text_of(path):
    return (ROOT / path).read_text()


def test_a_file_can_be_read_in_one_sitting():
    assert [str(path) for path in SOURCES if len(text_of(path).splitlines()) > MAX_LINES] == []


def test_nothing_is_left_unfinished():
    assert [str(path) for path in SOURCES if UNFINISHED.search(text_of(path))] == []


def test_file_and_folder_names_say_what_is_inside():
    assert [str(path) for path in FILES if any(NO_NAME.search(pathlib.Path(part).stem) for part in path.parts)] == []


def says_what_it_is(path):
    comment = text_of(path).split("\n#pragma once", 1)[0]
    return comment.startswith(f"// {path}\n//\n// ") and re.search(r"^// Flow:", comment, re.M)


def test_a_header_begins_with_its_path_its_purpose_and_its_place_in_the_flow():
    headers = [path for path in SOURCES if path.suffix == ".h" and path.parts[0] == "tieshard"]
    assert len(headers) > 30
    assert [str(path) for path in headers if not says_what_it_is(path)] == []


def test_the_readme_begins_with_two_commands():
    readme = text_of("README.md")
    assert "make demo" in readme and "make test" in readme


def test_the_readme_shows_the_example_that_is_compiled():
    readme = text_of("README.md")
    shown = re.search(r"<!-- examples/(\w+\.cpp) -->\n```cpp\n(.*?)```", readme, re.S)
    assert shown, "README.md has no code block after a marker with the name of its example"
    source = text_of(f"examples/{shown.group(1)}")
    body = re.search(r"// README: begin\n(.*?) *// README: end\n", source, re.S).group(1)
    lines = [line.removeprefix("  ") for line in body.splitlines()]
    assert shown.group(2).splitlines() == lines


def test_links_between_documents_lead_somewhere():
    links = [
        (path, target)
        for path in FILES
        if path.suffix == ".md"
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text_of(path))
    ]
    assert len(links) > 5
    assert [f"{path}: {target}" for path, target in links if not (ROOT / path.parent / target).exists()] == []


def test_no_two_test_files_have_one_name():
    """pytest imports them by it, so that the second one ends the whole run."""
    names = [path.name for path in FILES if path.suffix == ".py" and path.parts[0] == "tests" and path.name.startswith("test_")]
    assert [name for name in sorted(set(names)) if names.count(name) > 1] == [] and len(names) > 30
