"""The account of tieshard.fully_shard: what it did with each parameter.

Flow:   tieshard.sharding -> [this] -> the caller
"""

from __future__ import annotations

import dataclasses
import html
import typing

from tieshard import _core


class ShardedName(typing.NamedTuple):
    """One parameter. Shapes in elements: of the whole, and of this rank's part, without padding."""

    name: str
    aliases: list[str]
    unit: str  #: names of the modules that it is gathered with; "" is the root
    shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    dtype: str
    dim: int


@dataclasses.dataclass
class Sharding:
    """What tieshard.fully_shard did. In a notebook it shows as a table."""

    parameters: list[ShardedName]
    joined: dict[str, list[str]]  #: units of several modules, and the names of the parameters that they share
    findings: list[_core.Diagnostic]  #: warnings, e.g. of a tied weight that is cut into rows
    tied_again: list[str]  #: aliases that had another tensor than their canonical name, and no values to lose

    def find(self, name: str) -> ShardedName:
        """The parameter of this name or alias. Raises KeyError."""
        for each in self.parameters:
            if name == each.name or name in each.aliases:
                return each
        raise KeyError(name)

    @property
    def units(self) -> dict[str, list[str]]:
        """Unit -> names of its parameters."""
        found: dict[str, list[str]] = {}
        for each in self.parameters:
            found.setdefault(each.unit, []).append(each.name)
        return found

    def rows(self) -> list[list[str]]:
        return [[each.unit or "(root)", " = ".join([each.name, *each.aliases]), str(list(each.shape)), str(each.dim),
                 str(list(each.local_shape)), each.dtype.removeprefix("torch.")] for each in self.parameters]

    def __repr__(self) -> str:
        head = f"Sharding: {len(self.parameters)} parameters in {len(self.units)} units"
        lines = [f"  {unit or '(root)'}: {len(names)} parameters" + (f", shares {'; '.join(self.joined[unit])}" if unit in self.joined else "")
                 for unit, names in self.units.items()]
        tied = [f"  tied: {' = '.join([each.name, *each.aliases])} on dim {each.dim}" for each in self.parameters if each.aliases]
        return "\n".join([head, *lines, *tied, *(str(finding) for finding in self.findings)])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{title}</th>" for title in ("unit", "parameter", "shape", "dim", "of this rank", "dtype"))
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows())
        notes = "".join(f"<p>{html.escape(str(finding))}</p>" for finding in self.findings)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"
