"""Each field of TrainConfig is compared between the ranks, or is listed here as one that a rank has for itself."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
MEMBER = re.compile(r"^  [\w:<>, ]+? (\w+)(?: = [^;]*|\{[^;]*\})?;", re.M)
OF_EACH_RANK = {
    "model",    # a path: hosts mount the same files at different places. What is there is compared (describe_inputs)
    "data",     # the same
    "out",      # the same; rank 0 writes it
    "threads",  # cores of the rank's host
    "flags_json",  # the flags as text: they are compared one by one
}


def test_each_field_is_compared_between_the_ranks():
    struct = (ROOT / "tieshard/runtime/train/train_config.h").read_text().split("struct TrainConfig {")[1].split("\n};")[0]
    members = MEMBER.findall(struct)
    assert len(members) > 20
    text = (ROOT / "tieshard/runtime/train/config_text.cpp").read_text().split("describe(const TrainConfig& config)")[1]
    described = set(re.findall(r"config\.(\w+)", text))
    missing = [member for member in members if member not in described | OF_EACH_RANK]
    assert missing == [], (
        f"TrainConfig has {missing}, which describe() of runtime/train/config_text.cpp does not: ranks that were given "
        "different ones would train together. Add a line there, or the name and a reason to OF_EACH_RANK here.")
