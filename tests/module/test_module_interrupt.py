"""A long read can be stopped, and other threads run during it."""

import os
import signal
import threading

import pytest
import tieshard
import torch


SIZE = 512 << 20


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A checkpoint of 512 MiB of zeros, sparse on disk."""
    folder = tmp_path_factory.mktemp("large")
    header = ('{"weight":{"dtype":"BF16","shape":[%d,1024],"data_offsets":[0,%d]}}' % (SIZE // 2048, SIZE)).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + SIZE)
    (folder / "config.json").write_text("{}")
    return folder


class Weight(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(SIZE // 2048, 1024, dtype=torch.float32, device="meta"))


def test_ctrl_c_ends_a_read(large):
    """The signal is sent by another thread of Python once the read has begun: both the release and the question are needed."""
    main, begun = threading.get_ident(), threading.Event()
    inside = tieshard._core.ModelSource.read

    def interrupt():
        begun.wait()
        for _ in range(3):  # let the read begin: each wait gives the lock up
            threading.Event().wait(0.01)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()

    class Source:
        """Says when the read begins."""

        def __init__(self, *arguments, **options):
            self.source = real(*arguments, **options)

        def read(self, *arguments, **options):
            begun.set()
            return inside(self.source, *arguments, **options)

        def __getattr__(self, name):
            return getattr(self.source, name)

    real, tieshard._core.ModelSource = tieshard._core.ModelSource, Source
    try:
        with pytest.raises(KeyboardInterrupt):
            tieshard.load(Weight(), large, threads=1, read_buffer=1 << 20)
    finally:
        tieshard._core.ModelSource = real
        thread.join()


def test_other_threads_run_during_a_read(large):
    counted, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1
            os.sched_yield()

    model, source = Weight(), None
    source = tieshard._core.ModelSource(str(large), [("weight", list(model.weight.shape), "torch.float32", 1)])
    thread = threading.Thread(target=count)
    thread.start()
    try:
        before = counted[0]
        source.read([("weight", 0, "torch.float32", [0, 0], list(model.weight.shape))], threads=1)
        assert counted[0] > before + 100
    finally:
        stop.set()
        thread.join()
