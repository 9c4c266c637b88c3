"""The pages that doctor --html and report write, in a headless Chromium."""

import html.parser
import json
import os
import re
import shutil
import stat
import subprocess

import numpy as np
import pytest
from running import clean_environment, run, run_well
from safetensors.numpy import save_file

PROBE = """<script>window.addEventListener('load', () => {
  const page = document.documentElement;
  page.dataset.wide = page.scrollWidth > page.clientWidth ? page.scrollWidth : 0;
  page.dataset.ink = getComputedStyle(document.body).color + '/' + getComputedStyle(document.body).backgroundColor;
  page.dataset.scripts = document.scripts.length; });</script>"""


def chromium(page, tmp_path, width, dark=False):
    """(DOM as text, console output) of the page with a probe at its end."""
    program = shutil.which("chromium")
    assert program, "chromium is not installed: tools/setup.sh test"
    probed = tmp_path / "probed.html"
    probed.write_text(page.replace("</body>", PROBE + "</body>"))
    flags = ["--blink-settings=preferredColorScheme=0"] if dark else ["--blink-settings=preferredColorScheme=1"]
    done = subprocess.run([program, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0", *flags,
                           f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},1200", "--virtual-time-budget=2000",
                           "--dump-dom", probed.as_uri()], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


class Outline(html.parser.HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.links, self.unnamed = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.tags.append(tag)
        self.links += [values[key] for key in ("src", "href") if key in values]
        if tag == "svg" and not values.get("aria-label"):
            self.unnamed.append(tag)


@pytest.fixture(scope="module")
def pages(tieshard, smollm2, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    run_well([tieshard, "doctor", smollm2, "--ranks", 3, "--html", folder / "model.html"])
    hostile = folder / "hostile"
    hostile.mkdir()
    names = ["<script>document.title='owned'</script>", "a\x1b[31m'\"&", "x" * 5000] + [f"layers.{i}.weight" for i in range(300)]
    save_file({name: np.full((3, 5 + len(name) % 7), 1.5, np.float32) for name in names}, hostile / "model.safetensors")
    (hostile / "config.json").write_text(json.dumps({"model_type": "<b>", "architectures": ["<img src=x onerror=alert(1)>"]}))
    run([tieshard, "doctor", hostile, "--ranks", 7, "--html", folder / "hostile.html"])
    run_folder = folder / "run"
    (run_folder / "checkpoints" / "step-000000050").mkdir(parents=True)
    lines = [{"step": step, "loss": 4 / step + 1, "grad_norm": None if step == 9 else 1.0, "lr": 1e-4, "tokens": 512, "seconds": 0.5,
              "skipped": step == 9} | ({"eval_loss": 2.0} if step % 50 == 0 else {}) for step in range(1, 2001)]
    (run_folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 2001, "lo')
    (run_folder / "config.json").write_text(json.dumps({"model": "<i>m", "steps": 5000}))
    assert run_well([tieshard, "report", run_folder]).stdout.strip() == str(run_folder / "report.html")
    return {"model": (folder / "model.html").read_text(), "hostile": (folder / "hostile.html").read_text(),
            "run": (run_folder / "report.html").read_text()}


@pytest.mark.parametrize("name", ["model", "hostile", "run"])
def test_a_page_is_one_file_with_an_outline(pages, name):
    page = pages[name]
    outline = Outline(page)
    assert outline.links == ["data:,"] and "script" not in outline.tags and "img" not in outline.tags
    assert [tag for tag in outline.tags if re.fullmatch("h[1-6]", tag)][0] == "h1" and outline.tags.count("h1") == 1
    assert {"header", "main", "footer", "h2"} <= set(outline.tags) and outline.unnamed == []
    assert len(page) < 600_000 and "url(" not in page and "@import" not in page


@pytest.mark.parametrize(("name", "width", "dark"), [("model", 390, False), ("hostile", 390, True), ("run", 390, False), ("run", 1280, True)])
def test_a_browser_shows_it_without_complaint_on_a_phone_and_a_desk(pages, tmp_path, name, width, dark):
    dom, console = chromium(pages[name], tmp_path, width, dark)
    assert console == []
    root = re.search(r"<html[^>]*>", dom).group()
    assert 'data-wide="0"' in root, root
    assert 'data-scripts="1"' in root, root  # the probe alone
    ink, paper = (sum(map(int, re.findall(r"\d+", colour)[:3])) / 3 for colour in re.search('data-ink="([^"]*)"', root).group(1).split("/"))
    assert (ink > paper) == dark and abs(ink - paper) > 150, root
    assert "owned" not in re.search("<title>(.*?)</title>", dom, re.S).group(1)


def test_where_a_page_cannot_go_is_said(tieshard, tiny, tmp_path):
    for target in (tmp_path / "no" / "report.html", tmp_path):
        done = run([tieshard, "doctor", tiny, "--html", target], env=clean_environment())
        assert done.returncode == 2 and "[bad-flag]" in done.stderr and "--html" in done.stderr, done.stderr
    shown = run_well([tieshard, "doctor", tiny, "--html", "-"]).stdout
    assert shown.startswith("<!doctype html>") and shown.rstrip().endswith("</html>")


def test_a_directory_that_is_no_run_is_refused(tieshard, tmp_path):
    done = run([tieshard, "report", tmp_path])
    assert done.returncode == 2 and "holds no training run" in done.stderr, done.stderr


def test_a_page_replaces_a_page_alone(tieshard, tiny, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(tiny, model)
    weights = (model / "model.safetensors").read_bytes()
    for name in ("model.safetensors", "config.json"):
        done = run([tieshard, "doctor", model, "--html", model / name])
        assert done.returncode == 2 and "file of another kind" in done.stderr, done.stderr
    assert (model / "model.safetensors").read_bytes() == weights
    page, link = tmp_path / "page.html", tmp_path / "link.html"
    page.write_bytes(b"")
    link.symlink_to(page)
    for _ in range(2):  # an empty file, then an earlier page
        run_well([tieshard, "doctor", model, "--html", link])
        assert link.is_symlink() and page.read_text().startswith("<!doctype html>")
    device = tmp_path / "null"
    os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    run_well([tieshard, "doctor", model, "--html", device])
    assert stat.S_ISCHR(device.stat().st_mode)


def test_metrics_that_are_none_are_said(tieshard, tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 1e308}\n{"step": 2, "loss": -1e308}\nnoise\n{}\n')
    done = run_well([tieshard, "report", tmp_path, "--html", "-"])
    assert "inf" not in re.search(r"<svg.*</svg>", done.stdout, re.S)[0] and "2 lines that have none and 2 steps" in done.stderr
    (tmp_path / "metrics.jsonl").unlink()
    os.mkfifo(tmp_path / "metrics.jsonl")
    done = run([tieshard, "report", tmp_path], timeout=20)
    assert done.returncode == 4 and "[file-unreadable]" in done.stderr, done.stderr
