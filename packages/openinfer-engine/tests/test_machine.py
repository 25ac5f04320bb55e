import pytest

from openinfer_engine import _machine, host_memory_bytes, physical_cores


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A made-up machine: its hardware threads by core, and its container's limits."""

    def make(siblings, *, quota="max 100000", memory="max"):
        for cpu, text in siblings.items():
            folder = tmp_path / f"cpu/cpu{cpu}/topology"
            folder.mkdir(parents=True)
            (folder / "thread_siblings_list").write_text(text + "\n")
        (tmp_path / "cpu.max").write_text(quota + "\n")
        (tmp_path / "memory.max").write_text(memory + "\n")
        monkeypatch.setattr(_machine, "_CGROUP", tmp_path)
        monkeypatch.setattr(_machine, "_TOPOLOGY", tmp_path / "cpu")
        monkeypatch.setattr("os.sched_getaffinity", lambda _: set(siblings), raising=False)

    return make


def test_two_threads_of_a_core_count_once(machine):
    machine({0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5"})
    assert physical_cores() == 2


def test_without_topology_every_thread_is_a_core(machine, monkeypatch):
    machine({})
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    assert physical_cores() == 3


@pytest.mark.parametrize(
    ("quota", "cores"), [("150000 100000", 1), ("50000 100000", 1), ("max", 3)]
)
def test_a_quota_bounds_the_cores(machine, quota, cores):
    machine({0: "0", 1: "1", 2: "2"}, quota=quota)
    assert physical_cores() == cores


def test_a_container_limit_bounds_the_memory(machine):
    machine({0: "0"})
    whole = host_memory_bytes()
    machine_limit = 12_345_678
    (_machine._CGROUP / "memory.max").write_text(str(machine_limit))
    assert host_memory_bytes() == machine_limit < whole
