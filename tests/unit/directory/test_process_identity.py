"""Only the operating system proves a death, and only about the very process that joined."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

from silo.directory.process_identity import ProcessWatch, process_identity

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="deaths are proved on Linux only")

WAIT_MS = 10_000


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_this_process_has_an_identity_that_stays() -> None:
    mine = process_identity()
    assert mine is not None
    assert (mine.pid, mine) == (os.getpid(), process_identity())


def test_an_identity_survives_its_row(child: subprocess.Popen[bytes]) -> None:
    identity = process_identity(child.pid)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(identity), type=type(identity)) == identity


def test_a_process_that_is_not_there_has_none(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    assert process_identity(child.pid) is None


def test_a_watch_becomes_readable_when_the_process_ends_and_not_before(child: subprocess.Popen[bytes]) -> None:
    identity = process_identity(child.pid)
    assert identity is not None
    watch = ProcessWatch(identity)
    fd = watch.fileno()
    assert fd is not None
    assert not watch.has_ended
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    assert poll.poll(0) == []
    child.kill()
    assert poll.poll(WAIT_MS)
    watch.close()
    watch.close()


def test_a_process_that_ended_before_the_watch_is_proved_gone(child: subprocess.Popen[bytes]) -> None:
    identity = process_identity(child.pid)
    assert identity is not None
    child.kill()
    child.wait()
    watch = ProcessWatch(identity)
    assert (watch.has_ended, watch.fileno()) == (True, None)


def test_a_pid_that_is_used_again_proves_that_the_one_before_is_gone(child: subprocess.Popen[bytes]) -> None:
    identity = process_identity(child.pid)
    assert identity is not None
    watch = ProcessWatch(msgspec.structs.replace(identity, start_ticks=identity.start_ticks - 1))
    assert (watch.has_ended, watch.fileno()) == (True, None)


def test_H9_a_pid_of_another_container_or_machine_proves_nothing(child: subprocess.Popen[bytes]) -> None:
    identity = process_identity(child.pid)
    assert identity is not None
    child.kill()
    child.wait()
    boot, pids, time = identity.machine.split("/")
    for elsewhere in (f"other/{pids}/{time}", f"{boot}/1/{time}", f"{boot}/{pids}/1"):
        watch = ProcessWatch(msgspec.structs.replace(identity, machine=elsewhere))
        assert (watch.has_ended, watch.fileno()) == (False, None)
