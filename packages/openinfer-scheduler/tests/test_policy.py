import itertools
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from openinfer_contract import PluginError, TokenEvent
from openinfer_scheduler import (
    FCFS,
    PolicyError,
    Priority,
    UnknownPolicy,
    UnusablePolicy,
    installed_policies,
    load_policy,
)


def test_unknown_policy_names_the_installed_ones():
    with pytest.raises(UnknownPolicy, match="'lottery'") as caught:
        load_policy("lottery")
    assert caught.value.installed == installed_policies()


def test_policies_are_found_by_entry_point(monkeypatch, tmp_path):
    info = tmp_path / "some_policies-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-policies\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[openinfer.schedulers]\nurgent = openinfer_scheduler:Priority\n"
        "broken = no_such_module:Policy\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert {"broken", "urgent"} <= set(installed_policies())
    assert isinstance(load_policy("urgent"), Priority)
    with pytest.raises(PluginError, match=r"policy broken of some-policies 1\.0 .*no_such_module"):
        load_policy("broken")


def test_any_class_that_can_be_imported_is_a_policy():
    assert isinstance(load_policy("openinfer_scheduler:Priority"), Priority)
    for name, reason in (
        ("no_such_module:Policy", "no_such_module"),
        ("openinfer_scheduler:Lottery", "Lottery"),
        ("openinfer_scheduler:", "installed"),
        (":Priority", "installed"),
    ):
        with pytest.raises(UnknownPolicy, match=reason):
            load_policy(name)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("class Mine(FCFS):\n def __init__(self, x): pass", "TypeError: .*'x'"),
        ("class Mine(FCFS):\n def __init__(self): self.x", "AttributeError: .*'x'"),
        ("class Mine:\n order = chunk = FCFS.order", "no method victim"),
        ("class Mine(FCFS):\n def order(self, sequences): pass", "Policy.order"),
        ("Mine = 3", "'int' object is not callable"),
        ("1 / 0", "its module raised ZeroDivisionError"),
    ],
)
def test_a_class_that_is_no_policy_is_refused_by_name(monkeypatch, tmp_path, code, words):
    name = f"none_{abs(hash(code))}"
    (tmp_path / f"{name}.py").write_text(f"from openinfer_scheduler import FCFS\n{code}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnusablePolicy, match=f"^--scheduling-policy {name}:Mine: .*{words}"):
        load_policy(f"{name}:Mine")


@pytest.mark.parametrize(
    ("policy", "words"),
    [(FCFS, "FCFS is a class"), ("fcfs", "no method order"), (object(), "no method order")],
)
def test_a_scheduler_refuses_an_object_that_is_no_policy(loop, policy, words):
    with pytest.raises(TypeError, match=words):
        loop(policy=policy)


@pytest.mark.parametrize("path", [["/no/such/folder"], ["/no/such/folder", ""]])
def test_the_current_folder_is_searched_last(monkeypatch, tmp_path, path):
    (tmp_path / "policy_of_mine.py").write_text("from openinfer_scheduler import Priority as Mine")
    (tmp_path / "openinfer_scheduler.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*path])
    assert isinstance(load_policy("policy_of_mine:Mine"), Priority)
    assert isinstance(load_policy("openinfer_scheduler:Priority"), Priority)
    assert sys.path == path, "the path is restored"


def test_the_policies_of_this_package_are_declared():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    declared = project["entry-points"]["openinfer.schedulers"]
    assert set(declared) == {
        "fcfs",
        "priority",
        "longest-prefix-match",
        "lpm",
        "shortest-prefill-first",
        "fair",
    }
    for reference in declared.values():
        policy = load_policy(reference)
        assert list(policy.order([], 0.0)) == []
        assert policy.chunk(None, 5) == 5


def finish_order(subject):
    order = []
    take = subject.take

    def record(effects):
        order.extend(request_id for request_id, event in effects if event.end is not None)
        return take(effects)

    subject.take = record
    subject.run()
    return order


def test_fcfs_serves_in_order_of_arrival(loop):
    subject = loop(policy=FCFS(), max_num_seqs=1)
    for priority in (3, 1, 2):
        subject.add([1, 2], max_tokens=2, priority=priority, ignore_eos=True)
    assert finish_order(subject) == ["r0", "r1", "r2"]


def test_priority_serves_low_values_first_and_equals_by_arrival(loop):
    subject = loop(policy=Priority(), max_num_seqs=1)
    for priority in (3, 1, 2, 1):
        subject.add([1, 2], max_tokens=2, priority=priority, ignore_eos=True)
    assert finish_order(subject) == ["r1", "r3", "r2", "r0"]


def crowd(loop, policy, priorities):
    """Sequences that fit together at first and not when they grow."""
    subject = loop(policy=policy, num_blocks=9, max_num_batched_tokens=40)
    for number, priority in enumerate(priorities):
        subject.add([10 + number] * 7, max_tokens=17, priority=priority, ignore_eos=True)
    subject.run()
    return [subject.ends[f"r{n}"].num_preemptions for n in range(len(priorities))]


@pytest.mark.parametrize("priorities", [(0, 0, 0), (5, 4, 3)])
def test_fcfs_never_preempts_the_first(loop, priorities):
    preemptions = crowd(loop, FCFS(), priorities)
    assert preemptions[0] == 0
    assert preemptions[2] > 0


def test_priority_preempts_the_least_urgent_and_never_the_first(loop):
    preemptions = crowd(loop, Priority(), (3, 1, 2))
    assert preemptions[1] == 0
    assert preemptions[0] > 0


class Broken(FCFS):
    def __init__(self, order=None, victim=None):
        self._order = order
        self._victim = victim

    def order(self, sequences, now, /):
        return self._order(list(sequences)) if self._order else sequences

    def victim(self, candidates, /):
        return self._victim if self._victim else candidates[-1]


@pytest.mark.parametrize(
    "order", [lambda s: s[1:], lambda s: s + s[:1], lambda s: s[:1] * (len(s) + 1)]
)
def test_an_invalid_order_costs_no_request(loop, order):
    policy = Broken(order=order)
    subject = loop(policy=policy)
    subject.add([1, 2, 3])
    subject.add([4, 5, 6])
    with pytest.raises(PolicyError, match="order"):
        subject.plan()
    policy._order = None
    subject.run()


def test_a_request_that_loads_may_not_be_ranked_twice(loop):
    policy = Broken(order=lambda s: [*s[:1], *s])
    subject = loop(policy=policy)
    subject.add([1, 2, 3], is_loading=True)
    subject.add([4, 5, 6])
    with pytest.raises(PolicyError, match="order"):
        subject.plan()
    policy._order = None
    subject.loaded("r0")
    subject.run()


def test_an_order_may_be_a_generator(loop):
    num_ranked = 0

    def ranked(sequences):
        nonlocal num_ranked
        for sequence in reversed(sequences):
            num_ranked += 1
            yield sequence

    subject = loop(policy=Broken(order=ranked), max_num_seqs=1)
    for number in range(9):
        subject.add([number], max_tokens=1)
    assert [start.request.request_id for start in subject.plan().starts] == ["r8"]
    assert num_ranked == 1
    subject.run()


def test_an_invalid_victim_costs_no_request(loop):
    policy = Broken(victim=object())
    subject = loop(policy=policy, num_blocks=9, max_num_batched_tokens=40, depth=1)
    for number in range(3):
        subject.add([10 + number] * 7, max_tokens=17, ignore_eos=True)
    with pytest.raises(PolicyError, match="victim"):
        subject.run()
    policy._victim = None
    subject.run()


def test_a_policy_that_raises_costs_no_request(loop):
    class Raising(FCFS):
        is_broken = True

        def chunk(self, sequence, max_tokens, /):
            if self.is_broken and sequence.arrival_index == 1:
                raise ZeroDivisionError
            return max_tokens

    subject = loop(policy=Raising())
    subject.add([1, 2, 3])
    subject.add([4, 5, 6])
    with pytest.raises(PolicyError, match=r"Raising: chunk\(\) raised Zero.*test_policy.py, line"):
        subject.plan()
    assert subject.scheduler.load().num_running == 2, "the plan is completed"
    Raising.is_broken = False
    subject.run()
    assert all(isinstance(e, TokenEvent) for events in subject.events.values() for e in events)


@pytest.mark.parametrize("chunk", [1.5, float("nan"), None, "1"])
def test_a_chunk_that_is_no_integer_is_shown(loop, chunk):
    class Odd(FCFS):
        def chunk(self, sequence, max_tokens, /):
            return chunk

    subject = loop(policy=Odd())
    subject.add([1, 2, 3])
    with pytest.raises(PolicyError, match=rf"Odd: chunk\(\) returned {chunk!r}, .* no integer"):
        subject.plan()


def test_a_chunk_whose_repr_raises_is_a_fault(loop):
    class Number:
        def __index__(self):
            return 1 // 0

        __repr__ = __index__

    class Odd(FCFS):
        def chunk(self, sequence, max_tokens, /):
            return Number()

    subject = loop(policy=Odd())
    subject.add([1, 2, 3])
    with pytest.raises(PolicyError, match=r"Odd: chunk\(\) returned <Number .* no integer"):
        subject.plan()


def test_a_charge_that_raises_costs_no_plan(loop):
    class Raising(FCFS):
        is_broken = True

        def charge(self, sequence, num_tokens, /):
            if self.is_broken:
                raise ZeroDivisionError

    subject = loop(policy=Raising())
    subject.add([1, 2, 3])
    with pytest.raises(PolicyError, match=r"charge.*ZeroDivisionError"):
        subject.plan()
    assert len(subject.in_flight) == 1
    Raising.is_broken = False
    subject.run()
    assert all(isinstance(e, TokenEvent) for events in subject.events.values() for e in events)


class NoText(Exception):
    """An error whose text cannot be read."""

    def __str__(self):
        raise self


class Unreadable(list):
    """A list that raises when it is read."""

    def __iter__(self):
        raise NoText


STRANGE = {
    "endless": itertools.cycle,
    "unhashable": lambda sequences: [[sequence] for sequence in sequences],
    "incomparable": lambda sequences: [np.zeros(2) for _ in sequences],
    "unreadable": Unreadable,
}
"""Orders of running sequences that raise or never end when they are read naively."""


class Faulty(FCFS):
    """Commits one kind of fault, every time."""

    def __init__(self, fault):
        self.fault = fault

    def order(self, sequences, now, /):
        if self.fault == "order":
            raise ZeroDivisionError
        if self.fault == "reading":
            return Unreadable(sequences)
        if self.fault == "ranking":
            return (sequence for sequence in sequences if 1 / 0)
        if self.fault in STRANGE and sequences and sequences[0].is_running:
            return STRANGE[self.fault](sequences)
        return {"dropping": sequences[1:], "nothing": None}.get(self.fault, sequences)

    def chunk(self, sequence, max_tokens, /):
        return 1.5 if self.fault == "chunk" else max_tokens

    def victim(self, candidates, /):
        return None if self.fault == "victim" else candidates[-1]

    def charge(self, sequence, num_tokens, /):
        if self.fault == "charge" or (self.fault == "decoding" and sequence.num_output_tokens):
            raise ZeroDivisionError


@pytest.mark.parametrize(
    "fault",
    [
        *("order", "ranking", "reading", "dropping", "nothing", *STRANGE),
        *("chunk", "victim", "charge", "decoding"),
    ],
)
def test_a_policy_at_fault_is_replaced(loop, fault):
    subject = loop(policy=Faulty(fault), num_blocks=9, max_num_batched_tokens=40)
    for number in range(3):
        subject.add([10 + number] * 7, max_tokens=17, ignore_eos=True)
    with pytest.raises(PolicyError, match=r"test_policy.*Faulty: "):
        subject.run()
    assert subject.scheduler.take_policy_error() is None, "the error is returned once"
    subject.run()
    assert len(subject.ends) == 3


@pytest.mark.parametrize("change", ["twice", "fewer"])
def test_a_policy_that_changes_the_list_it_was_given_is_at_fault(loop, change):
    class Changing(FCFS):
        def order(self, sequences, now, /):
            if change == "twice":
                sequences += sequences[:1]
            else:
                del sequences[1:]
            return sequences

    subject = loop(policy=Changing())
    for number in range(3):
        subject.add([number, 2, 3], max_tokens=9)
    with pytest.raises(PolicyError, match="each of the sequences"):
        subject.run()


def test_a_victim_that_the_policy_added_to_the_candidates_is_a_fault(loop):
    class Adding(FCFS):
        def order(self, sequences, now, /):
            self.first = sequences[0] if sequences and sequences[0].is_running else None
            return sequences

        def victim(self, candidates, /):
            candidates.append(self.first)
            return self.first

    subject = loop(policy=Adding(), num_blocks=4)
    for number in range(3):
        subject.add([number, 2, 3], max_tokens=12)
    with pytest.raises(PolicyError, match="no candidate"):
        subject.run()
