"""What tieshard raises: one class for each kind of who can act, with the four parts of its message.

Flow:   tieshard._core and the modules of this package -> [this] -> the caller
"""

from tieshard._core import Diagnostic

__all__ = ["Diagnostic", "Error", "GuardError", "InputError", "InternalError", "PeerError", "SharedObjectError", "UsageError"]


class Error(Exception):
    """Base of everything tieshard raises. Catch a subclass to react, this one to report."""

    def __init__(self, diagnostic: Diagnostic):
        super().__init__(diagnostic)
        self.diagnostic = diagnostic

    @property
    def code(self) -> str:
        """The rule that was broken, e.g. "tie-shape-mismatch": docs/errors.md explains it."""
        return self.diagnostic.code

    @property
    def what(self) -> str:
        """Which rule was broken, without values."""
        return self.diagnostic.what

    @property
    def where(self) -> str:
        """Rank, file, parameter name."""
        return self.diagnostic.where

    @property
    def why(self) -> str:
        """Expected and got, with units."""
        return self.diagnostic.why

    @property
    def fix(self) -> str:
        """What to do next."""
        return self.diagnostic.fix

    def __str__(self) -> str:
        return str(self.diagnostic)


class InputError(Error, ValueError):
    """A file, a config or a value is wrong: the user can mend it."""


class UsageError(Error):
    """The API was called in a way that its contract forbids: the caller can mend it."""


class PeerError(Error):
    """The disk, the network or another rank failed; a retry may help."""


class InternalError(Error):
    """A bug in tieshard."""


class GuardError(UsageError, KeyError):
    """An optimizer holds what fully_shard does not manage. A KeyError too, as the failure that it takes the place of."""


class SharedObjectError(UsageError, AssertionError):
    """Names that should be one tensor are two. An AssertionError too, for tests that expect one."""


def bad_argument(function: str, argument: str, expected: str, got) -> InputError:
    """For an argument with a value that cannot be used."""
    return InputError(Diagnostic("bad-flag", what="an argument has a value that cannot be used", where=f"{function}, {argument}",
                                 why=f"expected {expected}, got {got!r}", fix="pass such a value; nothing was written"))


def rebuild_diagnostic(code, what, where, why, fix, level):
    """For pickle: errors cross from a rank's process to another one."""
    return Diagnostic(code, what=what, where=where, why=why, fix=fix, level=level)
