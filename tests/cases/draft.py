"""A checkpoint directory in the making, with what is expected of whoever opens it."""

import json
import re

from stored import file_bytes, header_bytes, numbered, table_of

SINGLE, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
CASES = {}


def case(expect, code=None, flags=(), ranks=None):
    """Registers the function below as a case: its name is the id, its module the kind, its docstring what is in it.

    expect  "ok": no finding above a note; "warn": loads, with the warning `code`; "refuse": the error `code`
    flags   of doctor and load; --rank is of load alone, for what is too large to be loaded whole in a test
    ranks   that both are tried with: by default 2, and 1 and 3 where nothing is to be said
    """

    def register(build):
        name = build.__name__.replace("_", "-")
        assert name not in CASES, name
        assert (code is None) == (expect == "ok"), name
        kind = build.__module__.removeprefix("cases_")
        CASES[name] = {"id": name, "kind": kind, "about": " ".join(build.__doc__.split()), "expect": expect,
                       "code": code, "flags": list(flags),
                       "ranks": list(ranks or ((1, 2, 3) if expect == "ok" else (2,))), "build": build}
        return build

    return register


class Draft:
    """What a case changes before the files are written. Edits of bytes run in the order in which they were given."""

    def __init__(self, directory):
        self.directory = directory
        self.config = {}
        self.tensors = {}
        self.metadata = {"format": "pt"}
        self.must_name = []
        self.after = []
        self.header_multiple = 8
        self._entries, self._header, self._file, self._written = [], [], [], []

    # ---- the model
    def use(self, model):
        config, tensors = model
        self.config, self.tensors = dict(config), dict(tensors)

    def set(self, **fields):
        self.config.update(fields)

    def unset(self, *fields):
        for field in fields:
            del self.config[field]

    def add(self, name, shape, dtype="F32", values_of=None):
        """A tensor with values of its own, or those that another name would get."""
        self.tensors[name] = numbered(values_of or name, shape, dtype)

    def drop(self, *names):
        for name in names:
            del self.tensors[name]

    def rename(self, change):
        self.tensors = {change(name): tensor for name, tensor in self.tensors.items()}

    # ---- faults
    def edit_entries(self, edit):
        """edit(entries, data): changes the header's entries; may give other data back."""
        self._entries.append(edit)

    def edit_header(self, edit):
        self._header.append(edit)

    def edit_file(self, edit):
        self._file.append(edit)

    def then(self, act):
        """act(directory), once all is written."""
        self._written.append(act)

    # ---- expectations
    def names(self, *parts):
        self.must_name += [str(part) for part in parts]

    def loads(self, name, stored_as=None, values=None):
        """`name` has to get these values: those of the tensor that is stored, unless others are given."""
        whole = self.tensors[stored_as or name].floats() if values is None else values
        self.after.append({"tensor": name, "first_values": [float(value) for value in whole[:4096]]})

    # ---- writing
    def write_file(self, file, tensors):
        entries, data = table_of(tensors)
        for edit in self._entries:
            edited = edit(entries, data)
            data = data if edited is None else edited
        header = header_bytes(entries, self.metadata)
        for edit in self._header:
            header = edit(header)
        raw = file_bytes(header, data, self.header_multiple)
        for edit in self._file:
            raw = edit(raw)
        (self.directory / file).write_bytes(raw)

    def write(self):
        self.write_config()
        self.write_file(SINGLE, self.tensors)
        self.finish()

    def write_config(self):
        (self.directory / CONFIG).write_text(json.dumps(self.config, indent=1))

    def finish(self):
        for act in self._written:
            act(self.directory)


class ShardedDraft(Draft):
    """The same in two shards, or as many as `place` names, with an index."""

    def __init__(self, directory):
        super().__init__(directory)
        self.count = 2
        self.place = lambda name: 1 if re.search(r"layers\.1\.|^model\.norm", name) else 0
        self.extra = {}    # shard number -> tensors that the index does not speak of
        self.indexed = {}  # changes of weight_map; None takes a name out
        self.total = None
        self._index = []

    def shard(self, number):
        return f"model-{number + 1:05d}-of-{self.count:05d}.safetensors"

    def edit_index(self, edit):
        """edit(document): changes the index in place, or gives text to write in its stead."""
        self._index.append(edit)

    def write(self):
        self.write_config()
        for number in range(self.count):
            part = {name: tensor for name, tensor in self.tensors.items() if self.place(name) == number}
            self.write_file(self.shard(number), part | self.extra.get(number, {}))
        weight_map = {name: self.shard(self.place(name)) for name in self.tensors} | self.indexed
        size = sum(len(tensor.data) for tensor in self.tensors.values())
        document = {"metadata": {"total_size": size},
                    "weight_map": {name: file for name, file in weight_map.items() if file is not None}}
        text = None
        for edit in self._index:
            text = edit(document) or text
        (self.directory / INDEX).write_text(text or json.dumps(document, indent=1))
        self.finish()
