"""
tieshard's torch-free core: checkpoints, ties, plans, diagnosis, reading, saving.
"""

from collections.abc import Iterator, Mapping, Sequence
import os
import pathlib
from typing import Annotated, Any


class Diagnostic:
    """One finding: a code, and what, where, why and fix. str() is its text."""

    def __init__(self, code: str, *, what: str, where: str = '', why: str = '', fix: str = '', level: str = 'error') -> None: ...

    @property
    def level(self) -> str:
        """"error", "warning" or "note"."""

    @property
    def code(self) -> str:
        """The rule that was broken, e.g. "tie-shape-mismatch" (docs/errors.md)."""

    @property
    def what(self) -> str:
        """Which rule was broken, without values."""

    @property
    def where(self) -> str:
        """Rank, file, parameter name, byte range."""

    @property
    def why(self) -> str:
        """Expected and got, with units."""

    @property
    def fix(self) -> str:
        """What to do next."""

    def __str__(self) -> str: ...

    def __reduce__(self) -> tuple: ...

    def __repr__(self) -> str: ...

class TieAlias:
    """Another name of a tied parameter, and why it is one."""

    @property
    def name(self) -> str: ...

    @property
    def evidence(self) -> list[str]:
        """One text for each reason, e.g. "module-identity: ..."; at least one."""

    def __repr__(self) -> str: ...

class TieGroup:
    """Names that share one storage."""

    @property
    def canonical(self) -> str:
        """The name that owns the storage: the first in registration order."""

    @property
    def aliases(self) -> list[TieAlias]:
        """The other names (TieAlias), in registration order."""

    @property
    def names(self) -> list[str]:
        """All names, the canonical one first."""

    def __repr__(self) -> str: ...

class TieRegistry:
    """Which parameter names are one weight, and why. Immutable."""

    @staticmethod
    def of(source: object) -> TieRegistry:
        """
        The ties of a torch.nn.Module (names that yield one tensor object; its bytes may be on meta), or of an
        opened Checkpoint (config.json, the family's rule, file metadata; stored copies are compared).

        Raises InputError: tie-shape-mismatch, tie-conflict, tie-source-ambiguous.
        """

    @staticmethod
    def from_map(alias_to_canonical: Mapping[str, str], table: Sequence[tuple[str, Sequence[int], str, int]]) -> TieRegistry:
        """
        From a map alias -> canonical, over rows (name, shape, dtype, identity) as parameter_table makes them.

        Raises InputError: tie-unknown-name, tie-cycle, tie-shape-mismatch.
        """

    @property
    def groups(self) -> list[TieGroup]:
        """Every tie, a TieGroup each."""

    @property
    def findings(self) -> list[Diagnostic]:
        """Warnings and notes of the decision."""

    def canonical_of(self, name: str) -> str:
        """The name that owns the storage of `name`; itself when it is not tied."""

    def is_alias(self, name: str) -> bool:
        """Whether another name owns the storage of `name`."""

    def aliases_of(self, canonical: str) -> list[str]:
        """
        The other names of a canonical name; empty when it has none or is an alias.
        """

    def seen_params(self, names: Sequence[str]) -> list[str]:
        """
        The canonical names of `names`, each once, in order of first appearance.
        """

    def expand(self, names: Sequence[str]) -> list[str]:
        """
        `names`, followed by every alias that is absent although its canonical name is there.
        """

    @property
    def aliases(self) -> dict[str, str]:
        """Alias -> canonical name, of all ties."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator: ...

    def __repr__(self) -> str: ...

    def _repr_html_(self) -> str: ...

class StoredTensor:
    """Where one tensor lies in the files."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> str:
        """As the format spells it: "BF16", "F8_E4M3", ..."""

    @property
    def shape(self) -> tuple:
        """Sizes, outermost first."""

    @property
    def offset(self) -> int:
        """First byte in its file."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""

    def __repr__(self) -> str: ...

class OpenedCheckpoint:
    """The C++ side of tieshard.Checkpoint."""

    def __init__(self, directory: str | os.PathLike) -> None: ...

    @property
    def tensors(self) -> list[StoredTensor]: ...

    @property
    def directory(self) -> pathlib.Path: ...

    @property
    def findings(self) -> list[Diagnostic]: ...

    @property
    def config_json(self) -> str: ...

    @property
    def family(self) -> str: ...

    def file_of(self, tensor: StoredTensor) -> str: ...

    def bytes_of(self, name: str) -> Annotated[Any, dict(writable=False)]: ...

def with_dtype(array: object, dtype: str) -> Annotated[Any, dict(writable=False)]: ...

class ShardedParameter:
    """How one canonical parameter lies on the ranks."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple:
        """Whole shape."""

    @property
    def dtype(self) -> str: ...

    @property
    def dim(self) -> int | None:
        """
        The dimension that is cut; None for a 0-dim parameter, which every rank holds.
        """

    def __repr__(self) -> str: ...

class ShardPlan:
    """
    What each rank holds of each parameter. Equal on every rank; immutable.
    """

    @staticmethod
    def build(source: object, ranks: int, *, shard_dim: str = "last", dims: dict[str, int] = {}, units: list[str] | None = None, param_dtype: str | None = None) -> ShardPlan:
        """
        Plans a torch.nn.Module or an opened Checkpoint for `ranks` ranks that share one copy of the model.

        shard_dim: the dimension to cut, "last" or "first"; a tied weight is always cut on its last.
        dims: dimensions of single parameters, by name. units: modules that are gathered together.
        Raises UsageError: tied-weight-on-vocab, unknown-parameter, bad-shard-dim, bad-rank-count.
        """

    @property
    def parameters(self) -> list[ShardedParameter]:
        """Canonical parameters only."""

    @property
    def ranks(self) -> int: ...

    @property
    def ties(self) -> TieRegistry: ...

    @property
    def units(self) -> dict[str, list[str]]:
        """
        Module name -> names of the parameters that are gathered with it; "" is the root.
        """

    def find(self, name: str) -> ShardedParameter:
        """The parameter of this name or alias. Raises KeyError."""

    def local_shape(self, name: str, rank: int) -> tuple:
        """Shape of `rank`'s part; a size may be 0."""

    def local_range(self, name: str, rank: int) -> tuple:
        """
        (offset, size) of `rank`'s part along the dimension that is cut, in elements.
        """

    def local_numel(self, rank: int) -> int:
        """Elements that `rank` holds in all."""

    @property
    def total_numel(self) -> int:
        """Elements of all parameters, each storage once."""

    def __len__(self) -> int: ...

    def __repr__(self) -> str: ...

    def _repr_html_(self) -> str: ...

class DoctorReport:
    """Whether a checkpoint would load, and all that is odd about it."""

    @property
    def verdict(self) -> str:
        """"ok", "warn" or "refuse"."""

    @property
    def findings(self) -> list[Diagnostic]:
        """Diagnostics: errors first, then warnings, then notes."""

    @property
    def architecture(self) -> str: ...

    @property
    def family(self) -> str:
        """Empty where tieshard does not know it."""

    @property
    def ties(self) -> list[TieGroup]:
        """A TieGroup each."""

    @property
    def files(self) -> int: ...

    @property
    def tensors(self) -> int:
        """Stored tensors."""

    @property
    def stored_bytes(self) -> int: ...

    @property
    def parameters(self) -> int:
        """Elements, each storage once."""

    def __bool__(self) -> bool:
        """Whether it loads."""

    def __repr__(self) -> str: ...

    def _repr_html_(self) -> str: ...

def doctor(directory: str | os.PathLike, ranks: int = 1, *, shard_dim: str = 'last', dims: Mapping[str, int] = {}, param_dtype: str | None = None, tie: Mapping[str, str] = {}, untie: Sequence[str] = [], on_tie_conflict: str = 'untie', check_values: bool = True, deep: bool = False, threads: int = 1) -> DoctorReport:
    """
    Says whether the checkpoint in `directory` would load on `ranks` ranks, and every reason why not.

    Arguments are the flags of `tieshard doctor`. Raises PeerError where something cannot be read.
    """

class ModelSource:
    """Where a module's parameters come from. Used by tieshard.load."""

    def __init__(self, directory: str | os.PathLike, table: Sequence[tuple[str, Sequence[int], str, int]], *, names: Mapping[str, str] = {}, declared: Sequence[tuple[str, str]] = [], tie: Mapping[str, str] = {}, untie: Sequence[str] = [], on_tie_conflict: str = 'untie', rename: bool = True, init: Mapping[str, str] = {}) -> None: ...

    @property
    def ties(self) -> TieRegistry: ...

    @property
    def findings(self) -> list[Diagnostic]: ...

    @property
    def unused(self) -> list[str]: ...

    def entries(self) -> list: ...

    def read(self, parts: list[tuple[str, int, str, list[int], list[int]]], threads: int = 1, buffer_bytes: int = 16777216, map: bool = True, check_values: bool = True) -> tuple[list[object | None], dict[str, object]]:
        """
        Reads parts (name, address or 0, dtype, offset, size). Arrays for those without an address, and an account.
        """

class SaveDirectory:
    """Rank 0's part in a save. Used by tieshard.save."""

    def __init__(self, directory: str | os.PathLike, step: int) -> None:
        """
        Locks the directory of checkpoints until release(). Raises InputError directory-in-use.
        """

    def stage(self, bytes: int) -> pathlib.Path:
        """An empty directory to write into. Raises PeerError disk-full."""

    def publish(self, manifest: str, trainer: str, *, texts: Mapping[str, str], source: str | os.PathLike, keep: int) -> list[pathlib.Path]:
        """
        Writes what stands beside the shard files, renames the directory to its name, and removes old ones. What was set aside is returned.
        """

    def discard(self) -> None:
        """Removes what is staged. Never raises."""

    def release(self) -> None:
        """Gives the lock back."""

def shard_file_bytes(blocks: Sequence[tuple[str, int, str, Sequence[int], Sequence[int], Sequence[int]]], id: str) -> int:
    """
    Bytes that the file of these blocks (name, address, dtype, whole shape, offset, size) will take.
    """

def write_shard_file(directory: str | os.PathLike, rank: int, part: int, parts: int, blocks: Sequence[tuple[str, int, str, Sequence[int], Sequence[int], Sequence[int]]], id: str) -> dict[str, object]:
    """
    Writes and syncs one file of a rank, and gives its record for the manifest.
    """

def find_checkpoint(path: str | os.PathLike, verify: bool = False) -> tuple[pathlib.Path, list[Diagnostic]]:
    """
    The training checkpoint to go on from, and warnings of newer ones that were passed over. verify: hashes too. Raises InputError no-checkpoint, checkpoint-incomplete, manifest-malformed.
    """

class SavedState:
    """A training checkpoint, opened. Used by tieshard.resume."""

    def __init__(self, directory: str | os.PathLike) -> None:
        """
        Raises InputError checkpoint-incomplete, manifest-malformed, saves-mixed.
        """

    @property
    def manifest(self) -> str:
        """manifest.json."""

    @property
    def trainer(self) -> str:
        """trainer.json."""

    def dtype_of(self, tensor: str) -> str:
        """The stored dtype, e.g. "BF16"."""

    def read(self, parts: Sequence[tuple[str, int, Sequence[int], Sequence[int]]]) -> None:
        """
        Reads parts (name, address, offset, size) in their stored dtype, whatever blocks hold them.
        """

class ExportLayout:
    """The files of an export. Used by tieshard.export_hf."""

    def __init__(self, tensors: Sequence[tuple[str, str, Sequence[int]]], max_shard_bytes: int) -> None:
        """
        Of tensors (name, dtype, shape), in the order in which they fill the files.
        """

    @property
    def files(self) -> list[str]:
        """Their names."""

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""

    def places(self) -> dict[str, tuple[int, int]]:
        """By tensor: index of its file, and its first byte there."""

    def stage(self, directory: str | os.PathLike, *, replace: bool, texts: Mapping[str, str], source: str | os.PathLike) -> pathlib.Path:
        """
        Makes the staging directory: each file at its full size, small files. Raises InputError output-exists.
        """

    def publish(self, directory: str | os.PathLike, *, replace: bool) -> None:
        """
        Opens the staged files as a loader does, and gives the directory its name.
        """

class ExportFileWriter:
    """One rank's part in a file. Used by tieshard.export_hf."""

    def __init__(self, path: str | os.PathLike) -> None: ...

    def write(self, name: str, offset: int, dtype: str, stored: tuple[list[int], list[int]], address: int, held_dtype: str, held: tuple[list[int], list[int]]) -> None:
        """
        Writes what a part of a parameter (offset and size, row-major at an address) has of a stored tensor (another part of it, from a byte of the file on).
        """

    def finish(self) -> dict[str, int]:
        """
        Reads back and syncs what was written. By tensor, the number of values that became infinite.
        """

def overflow_finding(overflowed: Mapping[str, int], where: str) -> Diagnostic:
    """The warning not-finite of an export."""
