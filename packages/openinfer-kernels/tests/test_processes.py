import multiprocessing
import os
import signal
import time
from functools import partial

import pytest

from openinfer_kernels.compile import _processes
from openinfer_kernels.compile._processes import ForkedJob, ForkedJobs


def _after(seconds, answer):
    time.sleep(seconds)
    return answer, os.getpid()


def test_results_come_in_the_order_of_the_work_from_processes_of_their_own():
    jobs = ForkedJobs(2)
    for seconds, answer in ((0.1, "slow"), (0.0, "fast"), (0.0, "last")):
        jobs.add(partial(_after, seconds, answer))
    results = list(jobs.results())
    assert [answer for answer, _ in results] == ["slow", "fast", "last"]
    assert len({os.getpid(), *(pid for _, pid in results)}) == 4


def test_at_most_the_limit_run_at_a_time(tmp_path):
    def count(name):
        (tmp_path / name).touch()
        time.sleep(0.1)
        running = len(list(tmp_path.iterdir()))
        (tmp_path / name).unlink()
        return running

    jobs = ForkedJobs(2)
    for index in range(6):
        jobs.add(partial(count, str(index)))
    assert max(jobs.results()) == 2


@pytest.mark.parametrize(
    ("files", "most"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "350000 100000"}, 3),
        ({"cpu.max": "50000 100000"}, 1),
        ({"meminfo": "MemTotal: 99999999 kB\nMemAvailable: 5242880 kB\nHugePages_Total: 0"}, 5),
        ({"meminfo": "MemAvailable: 1 kB"}, 1),
        ({"memory.max": "max", "memory.current": "9999999999"}, 8),
        ({"memory.max": str(6 << 30), "memory.current": str(4 << 30)}, 2),
        (
            {
                "memory.max": str(6 << 30),
                "memory.current": str(6 << 30),
                "memory.stat": f"anon 7\ninactive_file {3 << 30}\nactive_file {1 << 30}",
            },
            4,
        ),
        ({"memory.max": str(1 << 30), "memory.current": str(2 << 30)}, 1),
    ],
)
def test_no_more_run_than_a_container_has_cores_and_memory_for(files, most, tmp_path, monkeypatch):
    for name, text in files.items():
        (tmp_path / name).write_text(text + "\n")
    monkeypatch.setattr(_processes, "_CGROUP", tmp_path)
    monkeypatch.setattr(_processes, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert _processes.num_processes(1 << 30) == most


def test_work_without_a_result_says_so():
    with pytest.raises(ChildProcessError, match="has ended early"):
        ForkedJob(partial(os._exit, 3)).result()


def test_work_that_dies_between_two_adds_fails_alone():
    jobs = ForkedJobs(1)
    jobs.add(partial(time.sleep, 60))
    ((_, job),) = jobs._running.values()
    os.kill(job._process.pid, signal.SIGKILL)
    assert job.connection.poll(10)
    for answer in ("second", "third"):
        jobs.add(partial(_after, 0, answer))
    died, *others = jobs.results()
    assert isinstance(died, ChildProcessError)
    assert "has ended early" in str(died)
    assert [answer for answer, _ in others] == ["second", "third"]


def test_a_job_that_is_killed_while_it_sends_its_result_has_none():
    job = ForkedJob(partial(time.sleep, 60))
    job.connection.close()
    job.connection, sender = multiprocessing.Pipe(duplex=False)
    os.write(sender.fileno(), b"\0\0\0\x10half")
    sender.close()
    with pytest.raises(ChildProcessError, match="has ended early"):
        job.result()


def test_work_that_cannot_be_started_fails_alone(monkeypatch):
    jobs = ForkedJobs(2)
    jobs.add(partial(_after, 0, "first"))
    with monkeypatch.context() as patch:
        patch.setattr(_processes, "ForkedJob", _no_process)
        jobs.add(partial(_after, 0, "second"))
    jobs.add(partial(_after, 0, "third"))
    first, second, third = jobs.results()
    assert (first[0], third[0]) == ("first", "third")
    assert isinstance(second, ChildProcessError)
    assert "no process can be started: " in str(second)


def _no_process(work):
    raise BlockingIOError("Resource temporarily unavailable")


def test_a_job_that_takes_too_long_raises():
    with pytest.raises(ChildProcessError, match=r"takes more than 0\.1 s"):
        ForkedJob(partial(time.sleep, 60)).result(0.1)


def test_what_is_closed_ends():
    begun = time.monotonic()
    ForkedJob(partial(time.sleep, 60)).close()
    assert time.monotonic() - begun < 10


def test_a_job_ends_with_the_process_that_started_it(tmp_path):
    def outer():
        inner = ForkedJob(partial(_after, 60, None))
        (tmp_path / "pid").write_text(str(inner._process.pid))
        os.kill(os.getpid(), 9)

    with pytest.raises(ChildProcessError):
        ForkedJob(outer).result()
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while _is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
