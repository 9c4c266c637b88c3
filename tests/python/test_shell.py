"""Completion and man page, by the programs that read them, and colours by a terminal."""

import os
import pty
import shutil
import subprocess

import pytest
from running import run_well


def complete(tieshard, tmp_path, *words):
    script = tmp_path / "completion"
    script.write_text(run_well([tieshard, "completion", "bash"]).stdout)
    line = " ".join(f"'{word}'" for word in (tieshard, *words))
    asked = f"source '{script}'; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _tieshard; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    return subprocess.run(["bash", "--norc", "-c", asked], capture_output=True, text=True, check=True).stdout.split()


def test_bash_completes_verbs_flags_words_and_flags_of_the_program_that_computes(tieshard, tmp_path):
    assert complete(tieshard, tmp_path, "do") == ["doctor"]
    assert set(complete(tieshard, tmp_path, "plan", "--shard")) == {"--shard-dim"}
    assert complete(tieshard, tmp_path, "plan", "--shard-dim", "") == ["last", "first"]
    assert complete(tieshard, tmp_path, "check", "x", "--expect", "u") == ["untied"]
    assert complete(tieshard, tmp_path, "completion", "f") == ["fish"]
    assert "--steps" in complete(tieshard, tmp_path, "train", "--st")


def test_a_file_name_with_a_space_is_one_word(tieshard, tmp_path):
    (tmp_path / "sp ace").mkdir()
    script = tmp_path / "completion"
    script.write_text(run_well([tieshard, "completion", "bash"]).stdout)
    asked = f"source '{script}'; COMP_WORDS=(tieshard plan sp); COMP_CWORD=2; _tieshard; printf '<%s>' \"${{COMPREPLY[@]}}\""
    assert subprocess.run(["bash", "--norc", "-c", asked], capture_output=True, text=True, check=True, cwd=tmp_path).stdout == "<sp ace>"


def test_every_flag_of_the_help_is_completed(tieshard, tmp_path):
    for verb in ("inspect", "ties", "plan", "doctor", "check", "diff", "load", "reshard", "export", "merge", "merge-adapter", "demo"):
        shown = run_well([tieshard, verb, "--help"]).stdout
        flags = {word.split(",")[-1] for line in shown.splitlines() for word in line.split()[:1] if word.startswith("-")}
        assert flags <= set(complete(tieshard, tmp_path, verb, "--")) and flags, verb


def test_the_man_page_has_no_warning(tieshard, tmp_path):
    assert shutil.which("groff"), "groff is not installed: tools/setup.sh test"
    page = tmp_path / "tieshard.1"
    page.write_text(run_well([tieshard, "man"]).stdout)
    done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", page], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    text = done.stdout.replace("\u2010", "-")
    assert "tied weights" in text and "--shard-dim" in text and "tieshard doctor smollm2/" in text
    for verb in ("train", "eval", "generate", "forward"):  # of the program that computes, as it says them
        flags = {word.split(",")[-1] for line in run_well([tieshard, verb, "--help"]).stdout.splitlines() for word in line.split()[:1]
                 if word.startswith("-")}
        assert flags <= set(text.replace(",", " ").split()) and len(flags) > 5, verb


def on_terminal(words, **environment):
    """What the words print on a terminal."""
    master, slave = pty.openpty()
    env = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "TERM")} | {"TERM": "xterm"} | environment
    process = subprocess.Popen(list(map(str, words)), stdout=slave, stderr=slave, env=env)
    os.close(slave)
    said = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        said += part
    os.close(master)
    process.wait()
    return said.decode()


@pytest.mark.parametrize(("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True),
                                                       ({"TERM": "dumb"}, False)], ids=str)
def test_colours_are_for_terminals_that_want_them(tieshard, tiny, environment, coloured):
    assert ("\x1b[" in on_terminal([tieshard, "doctor", tiny], **environment)) == coloured


def test_a_pipe_gets_no_colours(tieshard, tiny):
    assert "\x1b[" not in run_well([tieshard, "doctor", tiny]).stdout
