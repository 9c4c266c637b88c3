"""tools/check_rooms.py finds each kind of violation, and nothing in a clean tree."""

import pathlib
import subprocess
import sys

import pytest

CHECKER = pathlib.Path(__file__).resolve().parents[2] / "tools/check_rooms.py"
ROOMS = """
tieshard_room(core/base LINKS nlohmann_json::nlohmann_json)
tieshard_room(core/plan DEPENDS core/base)
if(TIESHARD_RUNTIME)
  tieshard_room(runtime/mesh DEPENDS core/plan LINKS tieshard::torch) # core/base comes with core/plan
endif()
tieshard_room(cli DEPENDS core/plan PRIVATE_LINKS CLI11::CLI11)
tieshard_room(cli/runtime
  DEPENDS cli runtime/mesh
  PRIVATE_LINKS CLI11::CLI11)
"""


def check(root, file, text, rooms=ROOMS):
    (root / "CMakeLists.txt").write_text(rooms)
    path = root / "tieshard" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    result = subprocess.run([sys.executable, CHECKER, root], capture_output=True, text=True)
    return result.returncode, result.stdout + result.stderr


@pytest.mark.parametrize(
    "file, text, says",
    [
        ("core/base/a.h", '#include "tieshard/core/plan/plan.h"', "core/base may not include tieshard/core/plan/plan.h"),
        ("core/plan/a.cpp", '#  include "tieshard/runtime/mesh/m.h"', "core/plan may not include"),
        ("runtime/mesh/a.h", '#include "tieshard/cli/c.h"', "runtime/mesh may not include"),
        ("core/plan/a.h", '#include "plan.h"', "from the root"),
        ("core/plan/a.h", "#include <torch/torch.h>", "core/plan is torch-free"),
        ("cli/a.cpp", "#include <ATen/ATen.h>", "cli is torch-free"),
        ("runtime/mesh/a.cpp", "#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>", "only runtime/mesh/process_group.cpp"),
        ("core/other/a.h", "", "not a declared room"),
        ("core/plan/a.cpp", 'void f() { std::cout << "x"; }', "uses std::cout"),
        ("core/plan/a.cpp", 'void f() { std::fprintf(stderr, "x"); }', "uses fprintf"),
        ("runtime/mesh/a.cpp", "void f() { std::exit(1); }", "uses exit"),
    ],
)
def test_a_violation_is_named_with_its_file(tmp_path, file, text, says):
    status, output = check(tmp_path, file, text)
    assert status == 1
    assert f"tieshard/{file}: " in output
    assert says in output


@pytest.mark.parametrize(
    "file, text",
    [
        ("core/plan/a.h", '#include <map>\n#include "tieshard/core/base/b.h"\n#include "tieshard/core/plan/p.h"'),
        ("runtime/mesh/a.h", '#include <torch/torch.h>\n#include "tieshard/core/base/b.h"'),
        ("runtime/mesh/process_group.cpp", "#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>"),
        ("cli/runtime/a.cpp", '#include <torch/torch.h>\n#include "tieshard/cli/c.h"\nvoid f() { std::cout << 1; }'),
        ("core/plan/a.cpp", '// never std::cout here\nvoid f() { throw_error("exit(1) is not called"); std::snprintf(b, 1, "x"); _exit(1); }'),
    ],
)
def test_what_is_allowed_passes(tmp_path, file, text):
    assert check(tmp_path, file, text) == (0, "5 rooms, no rule between them broken\n")


def test_a_room_may_not_depend_on_one_below_it(tmp_path):
    rooms = "tieshard_room(core/base DEPENDS core/plan)\ntieshard_room(core/plan)"
    status, output = check(tmp_path, "core/base/a.h", "", rooms)
    assert status == 1
    assert "core/base depends on core/plan, which is not declared above it" in output


def test_a_list_that_is_not_found_is_a_failure(tmp_path):
    assert check(tmp_path, "core/base/a.h", "", rooms="project(x)")[0] == 1
