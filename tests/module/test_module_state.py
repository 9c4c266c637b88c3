"""tieshard.save and tieshard.resume: the bits that were there, on any number of ranks, under any placement, for torch's optimizers."""

import json

import pytest
import tieshard
import torch
import torch.distributed as dist
from module_ranks import run_on_ranks
from module_training import OPTIMIZERS, assert_same, build, last_dim, loss_of, train, whole_state

CASES = (("llama_tied", "adamw"), ("t5", "adamw"), ("gpt_oss_tied", "adamw"), ("llama_tied", "adam"), ("llama_tied", "sgd"))


def check_saves(folder):
    """Each model and optimizer: two steps, saved, and all that it was beside it."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    for name, optimizer in CASES:
        model, stepper = build(name, optimizer, placement=last_dim if ranks == 2 else None)
        if name == "t5":
            fill_gradients(model, stepper)
        else:
            train(model, stepper, range(2))
        run = folder / f"{name}-{optimizer}-{ranks}"
        report = tieshard.save(model, stepper, run, step=2, samples=8, tokens=72, flags={"note": "ä"})
        assert report.directory == run / "checkpoints" / "step-000000002" and report.directory.is_dir()
        state = whole_state(model, stepper)
        if not dist.is_initialized() or dist.get_rank() == 0:
            torch.save(state, run / "expected.pt")


def fill_gradients(model, optimizer):
    for index, parameter in enumerate(model.parameters()):
        parameter.grad = torch.ones_like(parameter) * (index + 1) * 1e-3
    optimizer.step()


def check_resumes(folder, saved):
    """What `saved` ranks left, in other objects: same bits, same objects."""
    here = dist.get_world_size() if dist.is_initialized() else 1
    for name, optimizer in CASES:
        run = folder / f"{name}-{optimizer}-{saved}"
        device = "meta" if name == "gpt_oss_tied" else "cpu"
        model, stepper = build(name, optimizer, seed=6, device=device, placement=last_dim if (here, saved) == (2, 3) else None)
        if name == "llama_tied":
            train(model, stepper, [9])  # there is a state to be replaced
        objects = dict(model.named_parameters())
        resumed = tieshard.resume(model, stepper, run, verify=True)
        assert dict(model.named_parameters()).items() == objects.items()
        assert all(parameter is objects[fqn] for fqn, parameter in model.named_parameters())
        assert (resumed.step, resumed.samples, resumed.tokens, resumed.flags) == (2, 8, 72, {"note": "ä"})
        assert resumed.generators_restored == (here == saved) and not resumed.findings
        assert_same(whole_state(model, stepper), torch.load(run / "expected.pt"))
        if name != "t5":
            train(model, stepper, [3])  # the state that was put together is one that the optimizer takes


def check_all_resumes(folder):
    for saved in (1, 2, 3):
        check_resumes(folder, saved)


@pytest.fixture(scope="module")
def saves(tmp_path_factory):
    """Checkpoints of 1, 2 and 3 ranks: plain, cut on the last dim, cut on the first."""
    folder = tmp_path_factory.mktemp("saves")
    check_saves(folder)
    for ranks in (2, 3):
        run_on_ranks(ranks, check_saves, folder)
    return folder


def test_one_rank_goes_on_from_what_any_number_saved(saves):
    check_all_resumes(saves)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_go_on_from_what_any_number_saved(saves, ranks):
    run_on_ranks(ranks, check_all_resumes, saves)


def check_goes_on(folder, options):
    """Three steps, saved, two more; a fresh model that resumes makes the same two."""
    model, optimizer = build("llama_tied", **options)
    for module in model.modules():  # dropout draws from the generator that is saved too
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.3
    train(model, optimizer, range(3))
    tieshard.save(model, optimizer, folder, step=3)
    expected = train(model, optimizer, range(3, 5))
    end = whole_state(model, optimizer)
    model, optimizer = build("llama_tied", seed=8, **options)
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.3
    assert tieshard.resume(model, optimizer, folder).generators_restored
    assert train(model, optimizer, range(3, 5)) == expected
    assert_same(whole_state(model, optimizer), end)


def check_each_goes_on(folder):
    for index, options in enumerate(({}, {"optimizer": "sgd", "placement": last_dim}, {"replicas": 2, "placement": last_dim})):
        check_goes_on(folder / str(index), options)
    manifest = json.loads((folder / "2" / "checkpoints" / "step-000000003" / "manifest.json").read_text())
    assert [axis["size"] for axis in manifest["mesh"]] == [2, 2]
    assert sum(file["name"].startswith("shard-") for file in manifest["files"]) == 4  # of one replica


def check_replicas(folder):
    """Of DistributedDataParallel one copy is written, under the names of what it wraps."""
    model, _ = build("llama_tied", sharded=False)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-2)
    losses = train(wrapped, optimizer, [0])
    tieshard.save(wrapped, optimizer, folder, step=1)
    files = sorted(path.name for path in (folder / "checkpoints" / "step-000000001").glob("*.safetensors"))
    assert len(losses) == 1 and files == ["shard-00001-model-00001-of-00002.safetensors", "shard-00001-model-00002-of-00002.safetensors"]
    other, stepper = build("llama_tied", seed=8)
    tieshard.resume(other, stepper, folder)
    assert_same(whole_state(other, stepper), whole_state(model, optimizer))
    tieshard.export_hf(wrapped, folder / "export")


def check_copies(folder):
    check_each_goes_on(folder)
    check_replicas(folder / "ddp")


def test_a_run_in_two_jobs_is_the_run_in_one(tmp_path):
    check_goes_on(tmp_path / "plain", {})
    run_on_ranks(4, check_copies, tmp_path)


class Own(torch.nn.Module):
    """Of the user's own: a buffer that is state, a parameter that never has a gradient, one that is frozen, one of no dimension."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
        self.unused = torch.nn.Parameter(torch.randn(3))
        self.frozen = torch.nn.Parameter(torch.randn(2, 2), requires_grad=False)
        self.scale = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, values):
        return (self.norm(values) * self.scale + self.frozen.sum()).square().sum()


@pytest.mark.parametrize("kind", [*OPTIMIZERS, "rmsprop", "adagrad"])
def test_a_module_of_the_users_own_comes_back_with_its_buffers_and_what_has_no_state_has_none(tmp_path, kind):
    make = OPTIMIZERS.get(kind) or {"rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.1, centered=True, momentum=0.5),
                                    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1)}[kind]
    model = Own()
    optimizer = make(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).backward()
        optimizer.step()
    tieshard.save(model, optimizer, tmp_path, step=2)
    manifest = json.loads((tmp_path / "checkpoints" / "step-000000002" / "manifest.json").read_text())
    records = {record["fqn"]: record for record in manifest["parameters"]}
    assert records["frozen"]["optimizer"] is None or kind == "adagrad"
    assert records["norm.num_batches_tracked"]["dtype"] == "I64" and not records["norm.running_mean"]["trainable"]
    again = Own()
    other = make(again.parameters())
    tieshard.resume(again, other, tmp_path)
    assert_same(whole_state(again, other), whole_state(model, optimizer))
    assert again.norm.num_batches_tracked == 2
    for each, stepper in ((model, optimizer), (again, other)):
        stepper.zero_grad()
        each(torch.arange(20.0).reshape(5, 4)).backward()
        stepper.step()
    assert_same(whole_state(again, other), whole_state(model, optimizer))


def test_a_module_on_meta_gets_its_memory_from_the_checkpoint(tmp_path):
    from module_models import class_of, config_of

    model, optimizer = build("llama_tied")
    train(model, optimizer, [0])
    tieshard.save(model, optimizer, tmp_path, step=1)
    with torch.device("meta"):
        again = class_of("llama_tied").from_config(config_of("llama_tied"))
    tieshard.resume(again, None, tmp_path)
    assert torch.equal(loss_of(again, 5), loss_of(model, 5))


class TwoNames(torch.nn.Module):
    """A buffer that is there twice, once as one that is not saved."""

    def __init__(self):
        super().__init__()
        self.inner, self.other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        self.register_buffer("table", torch.arange(3.0) + 1)
        self.inner.register_buffer("same", self.table)
        self.other.register_buffer("unsaved", self.table, persistent=False)


def test_a_buffer_of_two_names_on_meta_is_one_tensor_again(tmp_path):
    tieshard.save(TwoNames(), None, tmp_path, step=1)
    with torch.device("meta"):
        again = TwoNames()
    tieshard.resume(again, None, tmp_path)
    assert again.table.tolist() == [1, 2, 3] and again.inner.same is again.table and again.other.unsaved is again.table
