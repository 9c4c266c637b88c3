"""The small files beside a model's weights: config.json and generation_config.json, as transformers would save them.

Flow:   torch.nn.Module -> [this] -> tieshard.save, tieshard.export_hf
Source: transformers' save_pretrained.
"""

from __future__ import annotations

import copy
import json
import os
import pathlib

import torch

from tieshard.errors import Diagnostic, InputError


def config_texts(module: torch.nn.Module, source: str | os.PathLike | None, dtype: torch.dtype | None) -> dict[str, str]:
    """By file name. Of a transformers model its own config; of any other that of `source`, where it has one.

    dtype: that config.json is to say; None: what it says already, else that of the first parameter.
    """
    config = getattr(module, "config", None)
    if not hasattr(config, "to_json_string"):
        return source_config(source, dtype)
    config = copy.deepcopy(config)
    first = next((each.dtype for each in module.parameters() if each.dtype.is_floating_point), torch.float32)
    if dtype is not None or getattr(config, "dtype", None) is None:
        config.dtype = str(dtype or first).removeprefix("torch.")
    config.architectures = [type(module).__name__.removeprefix("FSDP")]
    if hasattr(config, "quantization_config"):  # the values are decoded by now
        del config.quantization_config
    texts = {"config.json": config.to_json_string()}
    generation = getattr(module, "generation_config", None)
    beside = source is not None and (pathlib.Path(source) / "generation_config.json").is_file()
    if generation is not None and not beside:
        texts["generation_config.json"] = generation.to_json_string()
    return texts


def source_config(source: str | os.PathLike | None, dtype: torch.dtype | None) -> dict[str, str]:
    """config.json of a model directory, with another dtype where one is given."""
    if source is None:
        return {}
    path = pathlib.Path(source) / "config.json"
    if not path.is_file():
        raise InputError(Diagnostic("config-missing", what="there is no config.json", where=str(source),
                                    why="expected the model's config.json there, got no such file", fix="name the directory of the model"))
    text = path.read_text()
    if dtype is None:
        return {"config.json": text}
    changed = {key: value for key, value in json.loads(text).items() if key not in ("torch_dtype", "quantization_config")}
    return {"config.json": json.dumps(changed | {"dtype": str(dtype).removeprefix("torch.")}, indent=2) + "\n"}
