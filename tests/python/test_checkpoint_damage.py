"""Checkpoints that are damaged or of another run, disks that are small or read-only, and two jobs in one directory: each is
said, and nothing is lost."""

import json
import os
import shutil
import signal

import pytest
from checkpoints import STEPS, SavingRun, assert_same_end, assert_whole, checkpoint, hidden_in, steps_of, tensors_of
from namespaces import NEEDS, as_nobody, on_small_disk, read_only
from running import run, run_well, wait_for

SHARD = "shard-00002-model-00001-of-00002.safetensors"
LONG = 60_000  # steps that no machine finishes within the test


@pytest.fixture(scope="module")
def saving(tieshard, tiny, tmp_path_factory):
    return SavingRun(tieshard, tiny, tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def unharmed(saving, tmp_path_factory):
    """A run with all of its checkpoints."""
    out = tmp_path_factory.mktemp("unharmed") / "run"
    run_well(saving.command(out, keep=0))
    return out


@pytest.fixture
def copied(unharmed, tmp_path):
    """A run without an export that may be damaged."""
    out = tmp_path / "run"
    shutil.copytree(unharmed, out)
    shutil.rmtree(out / "export")
    return out


def remove(path):
    path.unlink()


def truncate(path):
    os.truncate(path, path.stat().st_size - 1)


def flip_a_bit(path):
    with open(path, "r+b") as file:
        file.seek(-5, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-5, os.SEEK_END)
        file.write(bytes([byte ^ 1]))


def add_a_stale_shard(path):
    shutil.copy(path, path.with_name("shard-00003-model-00001-of-00002.safetensors"))


def cut_the_manifest(path):
    truncate(path.with_name("manifest.json"))
    truncate(path.with_name("manifest.json"))


DAMAGES = {"missing": (remove, "is missing"), "truncated": (truncate, "bytes and not"),
           "bit-flipped": (flip_a_bit, "has other bytes"), "stale": (add_a_stale_shard, "is not in the manifest"),
           "manifest": (cut_the_manifest, "text is not JSON")}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_goes_on_from_the_newest_checkpoint_that_is_complete_and_says_so(saving, unharmed, copied, damage):
    harm, said = DAMAGES[damage]
    harm(checkpoint(copied, STEPS) / SHARD)
    done = saving.go_on(copied)
    assert said in done.stderr and checkpoint(copied, STEPS).name in done.stderr, done.stderr
    assert f"step {STEPS - 1}," in done.stdout, done.stdout
    assert_same_end(copied, unharmed)


@pytest.mark.parametrize("verb", [["reshard", "--ranks", 3], ["export"], ["train"]], ids=lambda verb: verb[0])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_that_is_named_is_refused(tieshard, saving, copied, tmp_path, damage, verb):
    harm, said = DAMAGES[damage]
    source, out = checkpoint(copied, STEPS), tmp_path / "out"
    harm(source / SHARD)
    command = [tieshard, verb[0], source, out, *verb[1:], "--verify"] if verb[0] != "train" else \
        saving.command(out, "--resume", source, "--verify")
    refused = run(command)
    assert refused.returncode == 2, refused
    assert said in refused.stderr and source.name in refused.stderr, refused.stderr
    assert not out.exists() or [path.name for path in out.iterdir()] == [".lock"]
    assert hidden_in(tmp_path) == []


def test_a_run_whose_checkpoints_are_all_damaged_does_not_begin_again(saving, copied):
    for step in steps_of(copied):
        truncate(checkpoint(copied, step) / SHARD)
    refused = run(saving.command(copied, "--resume"))
    assert refused.returncode == 2, refused
    assert "[no-checkpoint]" in refused.stderr, refused.stderr
    for step in steps_of(copied):
        assert checkpoint(copied, step).name in refused.stderr, refused.stderr


def test_a_checkpoint_of_another_model_is_refused_with_what_differs(saving, reference, copied, tmp_path):
    other = SavingRun(saving.tieshard, reference / "llama_untied", tmp_path)
    before = {step: tensors_of(checkpoint(copied, step)) for step in steps_of(copied)}
    refused = run(other.command(tmp_path / "other", "--resume", copied))
    assert refused.returncode == 2, refused
    assert "[checkpoint-mismatch]" in refused.stderr, refused.stderr
    assert "model.embed_tokens.weight: expected shape [103, 48], got [101, 48]" in refused.stderr, refused.stderr
    assert {step: tensors_of(checkpoint(copied, step)) for step in steps_of(copied)} == before


def test_a_file_of_another_save_is_refused(saving, unharmed, copied):
    """The same shard of an earlier step, with the manifest made to fit it."""
    source, older = checkpoint(copied, STEPS), checkpoint(unharmed, STEPS - 1)
    manifest = json.loads((source / "manifest.json").read_text())
    earlier = {file["name"]: file for file in json.loads((older / "manifest.json").read_text())["files"]}
    manifest["files"] = [earlier[file["name"]] if file["name"] == SHARD else file for file in manifest["files"]]
    (source / "manifest.json").write_text(json.dumps(manifest))
    shutil.copy(older / SHARD, source / SHARD)
    refused = run(saving.command(copied, "--resume", source, "--verify"))
    assert refused.returncode == 2, refused
    assert "[saves-mixed]" in refused.stderr and SHARD in refused.stderr, refused.stderr


def start_long(processes, saving, out):
    job = processes(saving.command(out, "--no-export", steps=LONG))
    wait_for(lambda: job.poll() is not None or (out / "checkpoints" / "latest").exists(), 60, "the first checkpoint")
    assert job.poll() is None, job.communicate()
    return job


def test_two_jobs_in_one_directory_are_kept_apart_and_a_killed_one_leaves_no_lock(processes, saving, tmp_path):
    out = tmp_path / "run"
    job = start_long(processes, saving, out)
    for more in ([], ["--resume"]):
        refused = run(saving.command(out, *more))
        assert refused.returncode == 2, refused
        assert "[directory-in-use]" in refused.stderr or (not more and "[output-exists]" in refused.stderr), refused.stderr
    assert "process " in refused.stderr and " of host " in refused.stderr, refused.stderr
    os.killpg(job.pid, signal.SIGKILL)
    job.communicate()
    newest = steps_of(out)[-1]
    goes_on = run_well(saving.command(out, "--resume", "--no-export", steps=newest + 1))
    assert f"step {newest}," in goes_on.stdout, goes_on.stdout


def test_a_disk_that_is_too_small_ends_a_run_before_it_writes_what_does_not_fit(saving, unharmed, tmp_path):
    size = sum(path.stat().st_size for path in checkpoint(unharmed, STEPS).iterdir())
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    options = f"size={int(2.7 * size)}"
    failed = run([*on_small_disk(disk, options, kept), *saving.command(disk / "run", "--no-export", keep=0)])
    assert failed.returncode == 4, f"{NEEDS}\n{failed}"
    assert "[disk-full]" in failed.stderr and "free bytes" in failed.stderr, failed.stderr
    assert "nothing was written" in failed.stderr, failed.stderr
    assert_what_is_left_goes_on(saving, unharmed, kept / "run", [1, 2])


def test_a_disk_without_room_for_names_ends_a_run_with_what_was_saved(saving, unharmed, tmp_path):
    """There are free bytes, but no file can be made: the third save fails in its middle."""
    files = len(list(checkpoint(unharmed, STEPS).iterdir())) + 1
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    options = f"size=64m,nr_inodes={int(2.7 * files) + 6}"
    failed = run([*on_small_disk(disk, options, kept), *saving.command(disk / "run", "--no-export", keep=0)])
    assert failed.returncode == 4, f"{NEEDS}\n{failed}"
    assert "[disk-full]" in failed.stderr and "No space left on device" in failed.stderr, failed.stderr
    assert_what_is_left_goes_on(saving, unharmed, kept / "run", [1, 2])


def assert_what_is_left_goes_on(saving, unharmed, out, steps):
    assert steps_of(out) == steps
    for step in steps:
        assert_whole(checkpoint(out, step), checkpoint(unharmed, step))
    assert hidden_in(out / "checkpoints") == []
    saving.go_on(out)
    assert_same_end(out, unharmed)


@pytest.mark.parametrize("verb", [["reshard", "--ranks", 3], ["export"], ["merge"]], ids=lambda verb: verb[0])
def test_a_job_reads_from_a_read_only_directory_and_says_when_it_cannot_write_there(tieshard, copied, tmp_path, verb):
    source, closed = checkpoint(copied, STEPS), tmp_path / "closed"
    closed.mkdir()
    run_well([*read_only(copied), tieshard, verb[0], source, tmp_path / "out", *verb[1:]])
    refused = run([*read_only(closed), tieshard, verb[0], source, closed / "out", *verb[1:]])
    assert refused.returncode == 4, f"{NEEDS}\n{refused}"
    assert "[io-failed]" in refused.stderr and "Read-only file system" in refused.stderr, refused.stderr
    assert list(closed.iterdir()) == []


@pytest.mark.parametrize("verb", [["reshard", "--ranks", 3], ["export"], ["merge"]], ids=lambda verb: verb[0])
def test_a_job_of_another_user_reads_and_says_that_it_may_not_write_there(tieshard, copied, tmp_path, verb):
    source, closed, open_to_all = checkpoint(copied, STEPS), tmp_path / "closed", tmp_path / "open"
    closed.mkdir(mode=0o555)
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    run_well([*as_nobody(), tieshard, verb[0], source, open_to_all / "out", *verb[1:]])
    refused = run([*as_nobody(), tieshard, verb[0], source, closed / "out", *verb[1:]])
    assert refused.returncode == 4, refused
    assert "[io-failed]" in refused.stderr and "Permission denied" in refused.stderr, refused.stderr
    assert list(closed.iterdir()) == []


def test_a_run_in_the_directory_of_another_user_is_refused_before_it_loads(saving, unharmed, copied):
    for folder in (copied, copied / "checkpoints"):
        folder.chmod(0o555)
    for file in (copied / ".lock", copied / "checkpoints" / ".lock"):
        file.chmod(0o444)
    refused = run([*as_nobody(), *saving.command(copied, "--resume", steps=STEPS + 1)])
    assert refused.returncode == 2, refused
    assert "Permission denied" in refused.stderr, refused.stderr
    for step in steps_of(unharmed):
        assert_whole(checkpoint(copied, step), checkpoint(unharmed, step))


def test_a_run_in_a_directory_that_has_become_read_only_is_refused_before_it_loads(saving, unharmed, copied):
    refused = run([*read_only(copied), *saving.command(copied, "--resume", steps=STEPS + 1)])
    assert refused.returncode == 2, f"{NEEDS}\n{refused}"
    assert "Read-only file system" in refused.stderr, refused.stderr
    for step in steps_of(unharmed):
        assert_whole(checkpoint(copied, step), checkpoint(unharmed, step))


def test_a_run_goes_on_elsewhere_from_a_read_only_directory(saving, unharmed, copied, tmp_path):
    out = tmp_path / "elsewhere"
    run_well([*read_only(copied), *saving.command(out, "--resume", checkpoint(copied, STEPS - 1))])
    assert_whole(checkpoint(out, STEPS), checkpoint(unharmed, STEPS))
    assert tensors_of(out / "export") == tensors_of(unharmed / "export")
