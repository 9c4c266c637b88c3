"""However two ranks are started, they find each other and compute the same losses."""

import sys

import numpy
import pytest
from running import clean_environment, free_port, read_metrics, run, run_well

STEPS = 4


@pytest.fixture(scope="module")
def train(tiny, tmp_path_factory):
    """The arguments of a short run on the tiny model; every call names a new --out."""
    folder = tmp_path_factory.mktemp("launchers")
    tokens = numpy.random.default_rng(5).integers(0, 101, 2 * STEPS * 16)
    tokens.astype("<u2").tofile(folder / "tokens.bin")

    def arguments(name):
        out = folder / name
        return out, ["train", "--model", tiny, "--data", folder / "tokens.bin", "--out", out, "--steps", STEPS,
                     "--lr", 1e-3, "--batch", 1, "--seq", 16, "--threads", 1, "--no-shuffle"]

    return arguments


@pytest.fixture(scope="module")
def expected(tieshard, train):
    """The losses of the run under the program's own launcher."""
    out, arguments = train("own")
    run_well([tieshard, *arguments, "--ranks", 2], timeout=60, env=clean_environment())
    losses = [line["loss"] for line in read_metrics(out)]
    assert len(losses) == STEPS
    return losses


def losses_of_two(processes, command, out, variables):
    """Starts the command twice, with what variables(rank) gives, and waits for both."""
    both = [processes(command, env=clean_environment(**variables(rank))) for rank in range(2)]
    for rank, process in enumerate(both):
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, f"rank {rank}: {errors}"
    return [line["loss"] for line in read_metrics(out)]


def test_torchrun(tieshard_runtime, train, expected):
    out, arguments = train("torchrun")
    run_well([sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", 2, "--master_port", free_port(),
              "--no-python", tieshard_runtime, *arguments], timeout=120, env=clean_environment())
    assert [line["loss"] for line in read_metrics(out)] == expected


def test_torchrun_starting_the_small_program(tieshard, train, expected):
    out, arguments = train("torchrun-small")
    run_well([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", 2,
              "--no-python", tieshard, *arguments], timeout=120, env=clean_environment())
    assert [line["loss"] for line in read_metrics(out)] == expected


def test_slurm(processes, tieshard, train, expected):
    out, arguments = train("slurm")
    job = free_port()  # the ranks meet at a port made from the job's number

    def variables(rank):
        return {"SLURM_PROCID": rank, "SLURM_NTASKS": 2, "SLURM_LOCALID": rank, "SLURM_JOB_NODELIST": "localhost",
                "SLURM_JOB_ID": job}

    assert losses_of_two(processes, [tieshard, *arguments], out, variables) == expected


def test_mpirun(processes, tieshard, train, expected):
    out, arguments = train("mpirun")
    port = free_port()

    def variables(rank):
        return {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": 2, "OMPI_COMM_WORLD_LOCAL_RANK": rank,
                "OMPI_COMM_WORLD_LOCAL_SIZE": 2, "MASTER_PORT": port}

    assert losses_of_two(processes, [tieshard, *arguments], out, variables) == expected


def test_a_rank_count_that_contradicts_the_launcher_is_refused(processes, tieshard, train):
    out, arguments = train("contradiction")
    port = free_port()
    process = processes([tieshard, *arguments, "--ranks", 3], env=clean_environment(
        RANK=0, WORLD_SIZE=2, LOCAL_RANK=0, MASTER_ADDR="127.0.0.1", MASTER_PORT=port))
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (2, 3)
    assert "3" in errors and "2" in errors and "--ranks" in errors
    assert not out.exists()


def test_missing_variables_are_named(processes, tieshard, train):
    _, arguments = train("missing")
    process = processes([tieshard, *arguments], env=clean_environment(RANK=0))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "bad-environment" in errors and "WORLD_SIZE" in errors


@pytest.mark.parametrize("flags, variables", [
    (["--device", "cuda", "--ranks", 2], {}),
    (["--ranks", 2], {"TIESHARD_DEVICE": "cuda"}),
    (["--device", "cuda"], {}),
])
def test_a_gpu_that_is_not_there_is_refused(tieshard, train, flags, variables):
    env = clean_environment(CUDA_VISIBLE_DEVICES="", **variables)
    done = run([tieshard, *train("no_gpu")[1], *flags], env=env)
    assert done.returncode == 2
    assert "a device is asked for that cannot be used [device-unavailable]" in done.stderr
    assert not done.stdout


def test_the_device_flag_outdoes_the_variable(tieshard, train):
    run_well([tieshard, *train("cpu_flag")[1], "--device", "cpu"], env=clean_environment(TIESHARD_DEVICE="cuda"))


def test_a_device_that_is_none_is_refused(tieshard, train):
    done = run([tieshard, *train("no_device")[1], "--device", "cuda:1"], env=clean_environment())
    assert done.returncode in (2, 3) and "--device" in done.stderr
