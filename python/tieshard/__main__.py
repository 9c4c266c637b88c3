"""The command line of the wheel: `tieshard ...` and `python -m tieshard ...` are the torch-free program that it carries.

Flow:   the shell -> [this] -> tieshard/bin/tieshard
"""

import os
import pathlib
import sys

from tieshard.errors import Diagnostic, InputError


def program() -> pathlib.Path:
    """The program: TIESHARD_BIN_DIR names the folder of another one, as a build leaves it. Raises InputError file-not-found."""
    folder = os.environ.get("TIESHARD_BIN_DIR") or pathlib.Path(__file__).parent / "bin"
    found = pathlib.Path(folder) / "tieshard"
    if not found.is_file():
        raise InputError(Diagnostic("file-not-found", what="a file does not exist", where=str(found),
                                    why="expected the program tieshard there",
                                    fix="install the wheel (pip install .), or set TIESHARD_BIN_DIR to the folder of a build's programs"))
    return found


def main() -> int:
    """Becomes the program, with this process's arguments, or says why not."""
    try:
        path = program()
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    os.execv(path, [str(path), *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
