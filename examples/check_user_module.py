#!/usr/bin/env python3
"""check_user_module.py PROGRAM: the example's losses fall, and are the same on one rank and on two."""

import os
import re
import socket
import subprocess
import sys

program = sys.argv[1]


def losses(ranks: int) -> list[float]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(ranks):
        variables = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = os.environ | {name: str(value) for name, value in variables.items()}
        processes.append(subprocess.Popen([program], env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate(timeout=100)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), outputs
    print(ranks, "ranks\n" + outputs[0])
    return [float(loss) for loss in re.findall(r"loss (\S+)", outputs[0])]


alone, together = losses(1), losses(2)
assert len(alone) == 5 and alone[-1] < alone[0], alone
assert all(abs(one - two) < 1e-4 for one, two in zip(alone, together, strict=True)), (alone, together)
