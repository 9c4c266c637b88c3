"""What fits tieshard into other programs: the Trainer's callback and the pytest plugin. accelerate's hook: tests/issues."""

import os
import subprocess
import sys

import pytest
import tieshard
import torch
from module_location import MODULE_DIR
from module_models import class_of
from module_ranks import run_on_ranks
from transformers import Trainer, TrainerCallback, TrainingArguments

DATA = [{"input_ids": torch.arange(1, 13), "labels": torch.arange(1, 13)}] * 4


class Breaks(TrainerCallback):
    """What goes wrong while the Trainer runs, at its second step."""

    def __init__(self, harm):
        self.harm = harm

    def on_step_end(self, args, state, control, model=None, **more):
        if state.global_step == 1:
            self.harm(model)


def train(folder, out, *callbacks, harm_first=lambda model: None):
    model = class_of("llama_tied").from_pretrained(folder / "llama_tied")
    harm_first(model)
    arguments = TrainingArguments(out, max_steps=3, save_steps=2, per_device_train_batch_size=2, report_to=[], use_cpu=True, disable_tqdm=True)
    trainer = Trainer(model=model, args=arguments, train_dataset=DATA, callbacks=list(callbacks))
    trainer.train()
    return trainer


def untie(model):
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())


def replace_norm(model):
    model.model.norm.weight = torch.nn.Parameter(torch.ones(32))


def test_a_trainer_goes_through(models, tmp_path):
    callback = tieshard.TieshardCallback()
    trainer = train(models, tmp_path, callback)
    assert {each.kind for each in callback.guard.report(trainer.optimizer.optimizer)} == {"managed"}
    assert tieshard.doctor(tmp_path / "checkpoint-2").verdict == "ok"


@pytest.mark.parametrize("harm_first", [True, False])
def test_a_lost_tie_stops_it(models, tmp_path, harm_first):
    with pytest.raises(tieshard.UsageError) as caught:
        if harm_first:
            train(models, tmp_path, tieshard.TieshardCallback(), harm_first=untie)
        else:
            train(models, tmp_path, Breaks(untie), tieshard.TieshardCallback())
    assert caught.value.code in ("tie-not-shared", "optimizer-parameter") and "lm_head.weight" in str(caught.value)


def test_an_optimizer_without_a_parameter_stops_it(models, tmp_path):
    with pytest.raises(KeyError) as caught:
        train(models, tmp_path, Breaks(replace_norm), tieshard.TieshardCallback())
    assert "model.norm.weight" in str(caught.value)


def test_a_save_that_would_not_load_stops_it(models, tmp_path):
    class Damages(TrainerCallback):
        def on_save(self, args, state, control, **more):
            file = tmp_path / "checkpoint-2" / "model.safetensors"
            file.write_bytes(file.read_bytes()[:-4])

    with pytest.raises(tieshard.InputError) as caught:
        train(models, tmp_path, Damages(), tieshard.TieshardCallback())
    assert caught.value.code == "truncated" and "has just saved" in caught.value.fix


def with_adapter(model):
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "lm_head"]))


def test_an_adapters_wrapper_goes_through(models, tmp_path):
    """Names are those of the wrapper: base_model.model.lm_head.base_layer.weight."""
    model = with_adapter(class_of("llama_tied").from_pretrained(models / "llama_tied"))
    tieshard.validate_shared_object(model)
    arguments = TrainingArguments(tmp_path, max_steps=2, save_steps=1, report_to=[], use_cpu=True, disable_tqdm=True)
    Trainer(model=model, args=arguments, train_dataset=DATA, callbacks=[tieshard.TieshardCallback()]).train()
    untied = with_adapter(class_of("llama_tied").from_pretrained(models / "llama_tied"))
    layer = untied.base_model.model.lm_head.base_layer
    layer.weight = torch.nn.Parameter(layer.weight.detach() + 1)
    with pytest.raises(AssertionError) as caught:
        tieshard.validate_shared_object(untied)
    assert "base_model.model.lm_head.base_layer.weight" in caught.value.where


def check_all_ranks_raise(folder, out):
    """Rank 0 alone sees the damage; no rank waits for the others."""
    class Damages(TrainerCallback):
        def on_save(self, args, state, control, **more):
            if state.is_world_process_zero:
                file = out / f"checkpoint-{state.global_step}" / "model.safetensors"
                file.write_bytes(file.read_bytes()[:-4])

    model = class_of("llama_tied").from_pretrained(folder / "llama_tied")
    arguments = TrainingArguments(out, max_steps=3, save_steps=1, report_to=[], use_cpu=True, disable_tqdm=True, ddp_backend="gloo")
    with pytest.raises(tieshard.InputError) as caught:
        Trainer(model=model, args=arguments, train_dataset=DATA, callbacks=[Damages(), tieshard.TieshardCallback()]).train()
    assert caught.value.code == "truncated"


def test_a_damaged_save_stops_every_rank(models, tmp_path):
    run_on_ranks(2, check_all_ranks_raise, models, tmp_path)


TESTS = """
import torch

class Model(torch.nn.Module):
    def __init__(self, tie):
        super().__init__()
        self.a, self.b = torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False)
        if tie:
            self.b.weight = self.a.weight

def test_tied(assert_tied):
    assert_tied(Model(True), "a.weight", "b.weight")

def test_untied_fails(assert_tied):
    assert_tied(Model(False), "a.weight", "b.weight")

def test_unknown_name_fails(assert_tied):
    assert_tied(Model(True), "a.weight", "c.weight")

def test_a_name_twice_fails(assert_tied):
    assert_tied(Model(False), "a.weight", "a.weight")

def test_one_name_fails(assert_tied):
    assert_tied(Model(True), "a.weight")

def test_nothing_declared_fails(assert_tied):
    assert_tied(Model(True))

def test_managed(assert_all_managed):
    model = Model(True)
    assert_all_managed(model, torch.optim.SGD(model.parameters(), lr=1))

def test_left_out_fails(assert_all_managed):
    model = Model(False)
    assert_all_managed(model, torch.optim.SGD(model.a.parameters(), lr=1))

def test_stray_fails(assert_all_managed):
    model = Model(True)
    assert_all_managed(model, torch.optim.SGD([*model.parameters(), torch.nn.Parameter(torch.ones(2))], lr=1))
"""


def test_the_pytest_plugin(tmp_path):
    (tmp_path / "test_user.py").write_text(TESTS)
    done = subprocess.run([sys.executable, "-m", "pytest", "-p", "tieshard.pytest_plugin", "-q", "-rA", tmp_path], capture_output=True, text=True,
                          cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(MODULE_DIR)}, check=False)
    outcomes = {line.split("::")[1].split(" ")[0]: line.split(" ")[0] for line in done.stdout.splitlines() if "::test" in line}
    assert len(outcomes) == 9, done.stdout + done.stderr
    assert all(outcome == ("FAILED" if name.endswith("_fails") else "PASSED") for name, outcome in outcomes.items()), outcomes
