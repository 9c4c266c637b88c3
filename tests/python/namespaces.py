"""Hosts and containers for tests, made of the kernel's namespaces: nothing of them is left when their processes end.

They need root, or a kernel that lets users make user namespaces. Where neither is to be had, a test that needs them fails
and says so: like a missing package, a missing right never skips a test.
"""

import os
import subprocess
import time

import pytest

NEEDS = ("this test makes namespaces (unshare, nsenter of util-linux, ip of iproute2): run it as root with CAP_SYS_ADMIN, or "
         "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, or docker run --privileged)")
FIRST, SECOND = "192.0.2.1", "192.0.2.2"  # addresses for examples (RFC 5737): never those of a real host


def call(command):
    """Runs a short command to its end; fails the test, saying what is needed, when it cannot be."""
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=30)
    except FileNotFoundError as error:
        pytest.fail(f"{NEEDS}\n{error}")
    if done.returncode != 0:
        pytest.fail(f"{NEEDS}\n{' '.join(map(str, command))}: {done.stderr}")


def as_root():
    """Prefix of a command that may make namespaces."""
    return [] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user"]


class Holder:
    """A sleeping process in namespaces of its own, which last as long as it."""

    def __init__(self, command):
        self.process = subprocess.Popen([*command, "sleep", "infinity"], stderr=subprocess.PIPE, text=True)
        self.pid = self.process.pid
        deadline = time.monotonic() + 30
        while open(f"/proc/{self.pid}/comm").read().strip() != "sleep":  # unshare becomes sleep once all is made
            if self.process.poll() is not None:
                pytest.fail(f"{NEEDS}\n{' '.join(command)}: {self.process.stderr.read()}")
            assert time.monotonic() < deadline, "the namespaces were not made within 30 s"
            time.sleep(0.01)

    def end(self):
        self.process.kill()
        self.process.communicate()


class TwoHosts:
    """Two network namespaces with a cable between them. All else is one: names, files, process ids."""

    def __init__(self):
        self.holders = []
        self.user = []
        if os.geteuid() != 0:
            self.user = ["nsenter", "--user", "--preserve-credentials", f"--target={self.hold(as_root()).pid}"]
        self.pids = [self.hold([*self.user, "unshare", "--net"]).pid for _ in range(2)]
        self.ip(0, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", self.pids[1])
        for host, address in enumerate((FIRST, SECOND)):
            self.ip(host, "address", "add", f"{address}/24", "dev", "cable")
            self.ip(host, "link", "set", "cable", "up")
            self.ip(host, "link", "set", "lo", "up")

    def hold(self, command):
        self.holders.append(Holder(command))
        return self.holders[-1]

    def on(self, host):
        """Prefix of a command that runs on that host, 0 or 1. Its process becomes that command."""
        return [*self.user, "nsenter", f"--target={self.pids[host]}", "--net"]

    def ip(self, host, *words):
        call([*self.on(host), "ip", *words])

    def unplug(self):
        self.ip(0, "link", "set", "cable", "down")

    def end(self):
        for holder in self.holders:
            holder.end()


def in_container():
    """Prefix of a command that sees no process but its own, as in a container. It ends with the process that starts it."""
    return [*as_root(), "unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


def with_own_temporary_folders(folder):
    """Prefix of a command that sees `folder` as /mnt, and in it folder/tmp as /tmp and folder/shm as /dev/shm."""
    for name in ("tmp", "shm"):
        (folder / name).mkdir()
    script = 'mount --bind "$0" /mnt && mount --bind /mnt/tmp /tmp && mount --bind /mnt/shm /dev/shm && exec "$@"'
    return [*as_root(), "unshare", "--mount", "sh", "-c", script, folder]


def on_small_disk(folder, options, kept):
    """Prefix of a command for which `folder` is an empty file system in memory with these mount options, e.g. "size=2m". What
    it holds at the end is copied to `kept`, since it is gone with the command."""
    folder.mkdir()
    script = ('mount -t tmpfs -o "$1" tmpfs "$0" || exit 125; kept=$2; shift 2; "$@"; status=$?; '
              'cp -a "$0" "$kept" && exit $status')
    return [*as_root(), "unshare", "--mount", "sh", "-c", script, folder, options, kept]


def read_only(folder):
    """Prefix of a command for which `folder` is on a mount that is read-only, for root too."""
    script = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@" || exit 125'
    return [*as_root(), "unshare", "--mount", "sh", "-c", script, folder]


def as_nobody():
    """Prefix of a command that runs as a user who owns nothing: root is not kept out by permissions. It may read and search
    everywhere, since the folders of tests are closed to other users."""
    if os.geteuid() != 0:
        return []
    reading = "+dac_read_search"
    return ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", f"--inh-caps={reading}", f"--ambient-caps={reading}"]
