"""The account of a load into a torch module: where every parameter's bytes came from, and what became of the buffers.

Flow:   tieshard.load -> [this] -> the caller
"""

from __future__ import annotations

import dataclasses
import html

from tieshard._core import Diagnostic


@dataclasses.dataclass(frozen=True)
class LedgerEntry:
    """What happened to one parameter, under its canonical name, on this rank."""

    name: str
    aliases: list[str]  #: other names of the same tensor, which got their bytes by this entry too
    stored_name: str  #: name in the file; empty: initialised
    file: str  #: relative to the checkpoint
    offset: int  #: of the whole stored tensor's first byte in that file
    encoding: str  #: "plain", "mxfp4" or "fp8"
    stored_dtype: str  #: e.g. "BF16"
    scales: str  #: name in the file of the scales that were applied; empty: none
    initialised: str  #: the rule, where no file holds it and the caller asked for one
    shape: tuple[int, ...]  #: of the whole parameter
    elements: int  #: that this rank holds
    mapped: bool  #: private pages of the file in the place of a copy


@dataclasses.dataclass
class Ledger:
    """One entry for each storage, and what else there is to know of a load. Sizes in bytes."""

    entries: list[LedgerEntry]
    findings: list[Diagnostic]  #: warnings and notes
    unused: list[str]  #: stored tensors that nothing of the module uses
    buffers_loaded: list[str]  #: persistent buffers that the files hold
    buffers_recomputed: list[str]  #: buffers that no file holds, made anew by the module itself
    buffers_left: list[str]  #: buffers that no file holds and the module does not say how to make: as they were
    mended: list[str]  #: aliases that were tied again
    bytes_read: int = 0  #: copied from the files by this rank
    bytes_mapped: int = 0
    seconds: float = 0.0

    def find(self, name: str) -> LedgerEntry | None:
        """The entry that gave `name`, canonical or alias, its bytes."""
        return next((entry for entry in self.entries if name == entry.name or name in entry.aliases), None)

    @property
    def warnings(self) -> list[Diagnostic]:
        """The findings that are warnings."""
        return [finding for finding in self.findings if finding.level == "warning"]

    def __repr__(self) -> str:
        tied = sum(bool(entry.aliases) for entry in self.entries)
        lines = [f"Ledger: {len(self.entries)} parameters ({tied} tied), {self.bytes_read:,} bytes read, "
                 f"{self.bytes_mapped:,} mapped, {self.seconds:.3f} s"]
        for label, names in (("buffers recomputed", self.buffers_recomputed), ("buffers left", self.buffers_left),
                             ("unused", self.unused), ("tied again", self.mended)):
            if names:
                more = f", and {len(names) - 3} more" if len(names) > 3 else ""
                lines.append(f"  {label}: {', '.join(names[:3])}{more}")
        return "\n".join(lines + [f"  {finding.level} {finding.code}: {finding.what}" for finding in self.findings])

    def _repr_html_(self) -> str:
        head = ("parameter", "aliases", "from", "encoding", "dtype", "elements here", "mapped")
        rows = [(entry.name, ", ".join(entry.aliases), f"{entry.file}: {entry.stored_name}" if entry.file else entry.initialised,
                 entry.encoding, entry.stored_dtype, f"{entry.elements:,}", "yes" if entry.mapped else "") for entry in self.entries]
        cells = ["<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in [head, *rows]]
        return f"<pre>{html.escape(repr(self))}</pre><table>{''.join(cells)}</table>"
