"""`tieshard train` beside PyTorch on the same model and tokens: optimizers, schedules, groups; and what is refused."""

import json
import math

import numpy
import pytest
import torch
import transformers
from running import ROOT, clean_environment, read_metrics, run, run_well

STEPS, SEQ, RANKS = 10, 16, 2
BOUND = 2e-5  # of a loss near 4.6 after ten steps: the same sums in another order


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokens") / "tokens.bin"
    numpy.random.default_rng(5).integers(0, 101, STEPS * RANKS * SEQ).astype("<u2").tofile(path)
    return path


@pytest.fixture(scope="module")
def train(tieshard, tiny, tokens, tmp_path_factory):
    """Runs with these flags; gives the lines of its metrics."""
    folder = tmp_path_factory.mktemp("runs")

    def metrics(*flags):
        out = folder / str(len(list(folder.iterdir())))
        run_well([tieshard, "train", "--model", tiny, "--data", tokens, "--out", out, "--steps", STEPS, "--seq", SEQ,
                  "--ranks", RANKS, "--threads", 1, "--no-shuffle", "--no-export", *flags],
                 env=clean_environment(), timeout=120)
        return read_metrics(out)

    return metrics


def peer_losses(tiny, tokens, make_optimizer, schedule=None, clip=None):
    """The same training in PyTorch, on the whole global batch. `make_optimizer` takes the model."""
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    model.train()
    optimizer = make_optimizer(model)
    scheduler = schedule(optimizer) if schedule else None
    ids = torch.from_numpy(numpy.fromfile(tokens, "<u2").astype("int64")).view(STEPS, RANKS, SEQ)
    losses = []
    for batch in ids:
        loss = model(batch, labels=batch).loss
        loss.backward()
        losses.append(loss.item())
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        if scheduler:
            scheduler.step()
    return losses


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of Chen et al., in float64 state."""

    def __init__(self, params, lr, betas, weight_decay):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (beta1, beta2), rate, decay = group["betas"], group["lr"], group["weight_decay"]
            for parameter in group["params"]:
                state = self.state[parameter]
                mean = state.setdefault("m", torch.zeros_like(parameter, dtype=torch.float64))
                gradient = parameter.grad.double()
                update = torch.sign(beta1 * mean + (1 - beta1) * gradient)
                state["m"] = beta2 * mean + (1 - beta2) * gradient
                parameter.copy_(parameter.double() - rate * (update + decay * parameter.double()))


def decayed_groups(model, decay):
    """What has fewer than two dims is not decayed."""
    parameters = list(model.parameters())
    return [{"params": [each for each in parameters if each.ndim >= 2], "weight_decay": decay},
            {"params": [each for each in parameters if each.ndim < 2], "weight_decay": 0.0}]


def embedding_groups(model):
    embedding = model.get_input_embeddings().weight  # the tied head
    others = [each for each in model.parameters() if each is not embedding]
    return [{"params": [embedding], "lr": 1e-4}, {"params": others}]


CASES = {
    "adamw": (["--optimizer", "adamw", "--lr", 1e-3, "--beta1", 0.8, "--beta2", 0.95, "--eps", 1e-6, "--weight-decay", 0.3],
              lambda model: torch.optim.AdamW(model.parameters(), 1e-3, (0.8, 0.95), 1e-6, 0.3)),
    "sgd": (["--optimizer", "sgd", "--lr", 1e-2], lambda model: torch.optim.SGD(model.parameters(), 1e-2)),
    "sgd nesterov": (
        ["--optimizer", "sgd", "--lr", 1e-2, "--momentum", 0.9, "--nesterov", "--weight-decay", 0.1],
        lambda model: torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9, nesterov=True, weight_decay=0.1)),
    "lion": (["--optimizer", "lion", "--lr", 1e-4, "--weight-decay", 0.1],
             lambda model: Lion(model.parameters(), 1e-4, (0.9, 0.99), 0.1)),
    "no_decay": (["--lr", 1e-2, "--weight-decay", 0.5, "--param-groups", "no_decay"],
                 lambda model: torch.optim.AdamW(decayed_groups(model, 0.5), 1e-2)),
    "a pattern": (["--lr", 1e-3, "--param-groups", "lm_head:lr=1e-4"],
                  lambda model: torch.optim.AdamW(embedding_groups(model), 1e-3)),
}


@pytest.mark.parametrize("name", CASES)
def test_losses_are_those_of_pytorch(train, tiny, tokens, name):
    flags, make_optimizer = CASES[name]
    ours = [line["loss"] for line in train(*flags)]
    theirs = peer_losses(tiny, tokens, make_optimizer)
    assert ours == pytest.approx(theirs, abs=BOUND)
    assert theirs[-1] != pytest.approx(theirs[0], abs=100 * BOUND), "nothing was learnt"


def test_schedule_groups_and_clipping_together_are_pytorchs(train, tiny, tokens):
    ours = train("--lr", 1e-2, "--weight-decay", 0.1, "--param-groups", "no_decay", "--schedule", "cosine",
                 "--warmup-steps", 3, "--clip", 0.5)
    theirs = peer_losses(tiny, tokens, lambda model: torch.optim.AdamW(decayed_groups(model, 0.1), 1e-2),
                         lambda optimizer: transformers.get_cosine_schedule_with_warmup(optimizer, 3, STEPS), clip=0.5)
    assert [line["loss"] for line in ours] == pytest.approx(theirs, abs=BOUND)


def rates_of(schedule):
    """The rate of each step, from one of --lr 0.5."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    scheduler = schedule(optimizer)
    rates = []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


torch_rates = torch.optim.lr_scheduler
SCHEDULES = {
    "constant": ([], transformers.get_constant_schedule),
    "constant warmup": (["--warmup-steps", 4], lambda o: transformers.get_constant_schedule_with_warmup(o, 4)),
    "linear": (["--schedule", "linear"], lambda o: torch_rates.LinearLR(o, 1.0, 0.0, STEPS)),
    "linear warmup": (["--schedule", "linear", "--warmup-steps", 3],
                      lambda o: transformers.get_linear_schedule_with_warmup(o, 3, STEPS)),
    "cosine": (["--schedule", "cosine"], lambda o: torch_rates.CosineAnnealingLR(o, STEPS)),
    "cosine to a minimum": (["--schedule", "cosine", "--min-lr-ratio", 0.2],
                            lambda o: torch_rates.CosineAnnealingLR(o, STEPS, eta_min=0.1)),
    "cosine warmup minimum": (
        ["--schedule", "cosine", "--warmup-steps", 2, "--min-lr-ratio", 0.1],
        lambda o: transformers.get_cosine_with_min_lr_schedule_with_warmup(o, 2, STEPS, min_lr_rate=0.1)),
    "inverse sqrt": (["--schedule", "inverse-sqrt", "--warmup-steps", 3],
                     lambda o: transformers.get_inverse_sqrt_schedule(o, 3)),
} | {
    f"wsd {shape}": (["--schedule", "wsd", "--warmup-steps", 2, "--decay-steps", 5, "--decay-shape", shape],
                     lambda o, shape=shape: transformers.get_wsd_schedule(o, 2, 5, STEPS, decay_type=shape))
    for shape in ("linear", "cosine", "1-sqrt")
} | {
    "wsd minimum": (["--schedule", "wsd", "--decay-steps", 5, "--min-lr-ratio", 0.25],
                    lambda o: transformers.get_wsd_schedule(o, 0, 5, STEPS, decay_type="linear", min_lr_ratio=0.25)),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_rate_of_each_step_is_the_peers(train, name):
    flags, schedule = SCHEDULES[name]
    rates = [line["lr"] for line in train("--optimizer", "sgd", "--lr", 0.5, *flags)]
    assert rates == pytest.approx(rates_of(schedule), rel=1e-9, abs=1e-9)


def test_tokens_are_those_of_all_ranks(train):
    by_steps = train("--schedule", "wsd", "--warmup-steps", 2, "--decay-steps", 5)
    by_tokens = train("--schedule", "wsd", "--warmup-tokens", 2 * RANKS * SEQ, "--decay-tokens", 5 * RANKS * SEQ)
    assert [(line["lr"], line["loss"]) for line in by_tokens] == [(line["lr"], line["loss"]) for line in by_steps]


def test_bfloat16_shards_follow_the_float32_run(train):
    float32 = train("--lr", 1e-4)
    master = train("--lr", 1e-4, "--param-dtype", "bfloat16", "--bf16-update", "master-weights")
    random = train("--lr", 1e-4, "--param-dtype", "bfloat16", "--bf16-update", "stochastic-rounding")
    for lines in (master, random):
        assert [line["loss"] for line in lines] == pytest.approx([line["loss"] for line in float32], abs=0.05)


def test_a_step_that_cannot_be_made_is_skipped_and_counted(tieshard, tiny, tokens, tmp_path):
    out = tmp_path / "run"
    done = run_well([tieshard, "train", "--model", tiny, "--data", tokens, "--out", out, "--steps", 4, "--seq", SEQ,
                     "--ranks", RANKS, "--threads", 1, "--no-export", "--lr", 1e30, "--on-nonfinite-gradient", "skip"],
                    env=clean_environment(), timeout=120)
    assert done.stderr.count("[non-finite-gradient]") == 3, done.stderr
    assert "step 2, which is skipped, rank 0/2, model." in done.stderr, done.stderr
    lines = read_metrics(out)
    assert [line["skipped"] for line in lines] == [False, True, True, True]
    assert lines[1]["grad_norm"] is None and math.isfinite(lines[0]["grad_norm"])
    assert json.loads((out / "summary.json").read_text())["skipped_steps"] == 3


REFUSED = [
    (["--optimizer", "adam"], "--optimizer", "expected adamw, sgd or lion, got adam"),
    (["--beta1", 1], "--beta1", "a number from 0 to below 1, got 1"),
    (["--beta2", -0.1], "--beta2", "got -0.1"),
    (["--eps", "inf"], "--eps", "got inf"),
    (["--momentum", 0.9], "--momentum", "expected --optimizer sgd, got adamw"),
    (["--optimizer", "sgd", "--beta1", 0.9], "--beta1", "expected --optimizer adamw or lion, got sgd"),
    (["--optimizer", "lion", "--eps", 1e-8], "--eps", "expected --optimizer adamw, got lion"),
    (["--optimizer", "sgd", "--nesterov"], "--nesterov", "expected --momentum above 0, got none"),
    (["--bf16-update", "master-weights"], "--bf16-update", "expected --param-dtype bfloat16"),
    (["--param-dtype", "bfloat16", "--bf16-update", "up"], "--bf16-update", "got up"),
    (["--schedule", "step"], "--schedule", "expected constant, linear, cosine, wsd or inverse-sqrt, got step"),
    (["--schedule", "wsd"], "schedule wsd", "expected the length of the decay, got none"),
    (["--schedule", "inverse-sqrt"], "schedule inverse-sqrt", "expected a warm-up"),
    (["--schedule", "cosine", "--warmup-steps", 90, "--decay-steps", 20], "schedule cosine", "got 90 and 20"),
    (["--steps", 3, "--warmup-steps", 50], "schedule constant", "within the 3 of the run, got 50 and 0"),
    (["--decay-steps", 20], "schedule constant", "expected no length of a decay, got 20"),
    (["--min-lr-ratio", 0.1], "schedule constant", "expected no smallest rate"),
    (["--schedule", "cosine", "--min-lr-ratio", 1], "--min-lr-ratio", "got 1"),
    (["--schedule", "cosine", "--decay-shape", "linear"], "--decay-shape", "expected --schedule wsd, got cosine"),
    (["--schedule", "cosine", "--warmup-steps", 1, "--decay-tokens", 9], "--warmup-steps", "by steps or one by tokens"),
    (["--warmup-steps", -1], "--warmup-steps", "got -1"),
    (["--param-groups", "norm"], "parameter group norm", "got no colon"),
    (["--param-groups", "norm:beta1=0"], "parameter group norm:beta1=0", "the setting"),
    (["--on-nonfinite-gradient", "ignore"], "--on-nonfinite-gradient", "expected stop or skip, got ignore"),
]


@pytest.mark.parametrize(("flags", "where", "why"), REFUSED, ids=[" ".join(map(str, flags)) for flags, _, _ in REFUSED])
def test_a_value_that_cannot_be_used_is_refused_before_anything_is_started(tieshard, tmp_path, flags, where, why):
    command = [tieshard, "train", "--model", "none", "--data", "none", "--out", tmp_path / "run", "--ranks", RANKS, *flags]
    done = run(command, env=clean_environment())
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("[bad-flag]") == 1 and f"where: {where}\n" in done.stderr and why in done.stderr, done.stderr
    assert "fix: " in done.stderr and not (tmp_path / "run").exists()


def test_a_pattern_that_takes_no_parameter_is_refused(tieshard, tiny, tokens, tmp_path):
    done = run([tieshard, "train", "--model", tiny, "--data", tokens, "--out", tmp_path / "run", "--ranks", RANKS, "--seq", SEQ,
                "--steps", 1, "--param-groups", "router:lr=1"], env=clean_environment())
    assert done.returncode == 2 and "[unknown-parameter]" in done.stderr and "matching router" in done.stderr, done.stderr


def test_help_and_the_document_name_the_same_flags(tieshard):
    shown = run_well([tieshard, "train", "--help"]).stdout
    document = (ROOT / "docs" / "training.md").read_text()
    for flag in ("--optimizer", "--lr", "--weight-decay", "--beta1", "--beta2", "--eps", "--momentum", "--nesterov", "--bf16-update",
                 "--freeze", "--param-groups", "--schedule", "--warmup-steps", "--decay-steps", "--warmup-tokens", "--decay-tokens",
                 "--min-lr-ratio", "--decay-shape", "--clip", "--on-nonfinite-gradient"):
        assert f"\n  {flag} " in shown and f"`{flag}" in document, flag
