"""accelerate #3838: GPT-OSS fails to load under FSDP2. A tied tiny GPT-OSS, from meta, both names stored; T5's four names. The real peers."""

import warnings

import pytest
import tieshard
import torch
import torch.distributed as dist
from issue_models import IDS, accelerator, on_meta, save_gpt_oss, two_steps, whole
from module_models import class_of
from module_models import on_meta as model_on_meta
from module_ranks import run_on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

OPTIONS = {"lr": 0.01, "eps": 1e-4}
BLOCK = "GptOssDecoderLayer"


def shard(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of 3 ranks, which do not divide the hidden size
        return tieshard.fully_shard(model, init_device_mesh("cpu", (dist.get_world_size(),)))


class TinyTiedLM(torch.nn.Module):
    """The write-up's model."""

    def __init__(self, vocab, hidden):
        super().__init__()
        self.embed_tokens = torch.nn.Parameter(torch.empty(vocab, hidden))
        self.lm_head = torch.nn.Linear(hidden, vocab, bias=False)
        self.lm_head.weight = self.embed_tokens

    def forward(self, x):
        return self.lm_head(self.embed_tokens[x])


def test_the_write_ups_tests(tmp_path):
    """test_tie_is_single_parameter, test_no_duplicate_materialize and test_forward_shape, which read no file and lose the tie in .to("meta")."""
    from safetensors.torch import save_file

    model = TinyTiedLM(200, 16)
    ties = tieshard.TieRegistry.of(model)
    assert ties.aliases == {"lm_head.weight": "embed_tokens"} and ties.seen_params(["embed_tokens", "lm_head.weight"]) == ["embed_tokens"]
    stored = torch.randn(200, 16)
    save_file({"embed_tokens": stored, "lm_head.weight": stored.clone()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    with torch.device("meta"):
        model = TinyTiedLM(200, 16)
    ledger = tieshard.load(model, tmp_path)
    assert [entry.name for entry in ledger.entries] == ["embed_tokens"]  # materialized once
    assert ledger.bytes_read + ledger.bytes_mapped == stored.nbytes
    assert model.lm_head.weight is model.embed_tokens and torch.equal(model.embed_tokens, stored)
    assert tuple(model(torch.randint(0, 200, (2, 5))).shape) == (2, 5, 200)
    lost = TinyTiedLM(200, 16).to("meta")
    assert lost.lm_head.weight is not lost.embed_tokens  # as torch has it
    assert tieshard.load(lost, tmp_path, tie={"lm_head.weight": "embed_tokens"}).mended == ["lm_head.weight"]
    assert lost.lm_head.weight is lost.embed_tokens


def check_without(directory, world):
    """torch: to_empty before the wrap makes two weights of the tie, without a word. accelerate: values of rank 0 alone, tie by tie_weights."""
    model = on_meta(directory).to_empty(device="cpu")
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    for layer in model.model.layers:
        fully_shard(layer, mesh=init_device_mesh("cpu", (world,)))
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    assert model.lm_head.weight is not model.model.embed_tokens.weight and model.config.tie_word_embeddings
    model = on_meta(directory)
    prepared, _ = accelerator(block=BLOCK).prepare(model, torch.optim.AdamW(model.parameters()))
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):  # tensors left on meta
        prepared(input_ids=IDS, labels=IDS)


def check_gpt_oss(directory):
    """From meta, both names stored: one parameter, this rank's columns, and the numbers of the whole model."""
    reference = whole(directory)
    expected = two_steps(reference, torch.optim.AdamW(reference.parameters(), **OPTIONS))
    model = shard(on_meta(directory))
    ledger = tieshard.load(model, directory)
    assert sum(entry.name == "model.embed_tokens.weight" for entry in ledger.entries) == 1 and not ledger.unused
    assert not any(each.is_meta for each in [*model.parameters(), *model.buffers()])
    assert two_steps(model, tieshard.OptimizerGuard(model).build(torch.optim.AdamW, **OPTIONS)) == pytest.approx(expected, rel=1e-4)
    emptied = on_meta(directory).to_empty(device="cpu")  # loses the tie, with garbage in both
    emptied.lm_head.weight.data.zero_()
    emptied.model.embed_tokens.weight.data.fill_(1)
    with pytest.raises(AssertionError) as caught:
        shard(emptied)
    assert caught.value.code == "tie-not-shared" and "to_empty" in caught.value.why
    emptied.tie_weights()
    tieshard.load(shard(emptied), directory)
    assert emptied(input_ids=IDS, labels=IDS).loss.item() == pytest.approx(expected[0], rel=1e-5)
    model = on_meta(directory)
    optimizer = torch.optim.AdamW(model.parameters(), **OPTIONS)
    with tieshard.accelerate_hook(directory):
        model, optimizer = accelerator(block=BLOCK).prepare(model, optimizer)
    assert two_steps(model.eval(), optimizer) == pytest.approx(expected, rel=1e-4)


def check_t5(models):
    """Four names of one table."""
    reference = class_of("t5").from_pretrained(models / "t5").eval()
    expected = two_steps(reference, torch.optim.AdamW(reference.parameters(), **OPTIONS))
    model = shard(model_on_meta(models / "t5", "t5").eval())
    ledger = tieshard.load(model, models / "t5")
    assert len({id(each) for each in (model.shared.weight, model.encoder.embed_tokens.weight, model.decoder.embed_tokens.weight,
                                      model.lm_head.weight)}) == 1
    assert sum("embed_tokens" in entry.name or entry.name in ("shared.weight", "lm_head.weight") for entry in ledger.entries) == 1
    assert two_steps(model, tieshard.OptimizerGuard(model).build(torch.optim.AdamW, **OPTIONS)) == pytest.approx(expected, rel=1e-4)


def check_all(directory, models):
    if dist.get_world_size() == 2:
        check_without(directory, 2)
    check_gpt_oss(directory)
    check_t5(models)


@pytest.mark.parametrize("world", [2, 3])
def test_on_ranks(tmp_path, models, world):
    run_on_ranks(world, check_all, save_gpt_oss(tmp_path), models)
