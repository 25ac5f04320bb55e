"""Seeds of requests that have none."""

from openinfer_scheduler.state._seeds import Seeds


def test_seeds_are_those_of_splitmix64():
    seeds = Seeds(1234567)
    assert [seeds.draw() for _ in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_without_a_start_two_engines_have_different_seeds():
    assert Seeds(None).draw() != Seeds(None).draw()
    assert Seeds(0).draw() == Seeds(0).draw()


def test_requests_without_a_seed_get_one_in_order_of_arrival(loop):
    subject = loop()
    for _ in range(3):
        subject.add(range(3), max_tokens=2)
    subject.add(range(3), max_tokens=2, seed=11)
    seeds = Seeds(subject.config.seed)
    assert [start.seed for start in subject.plan().starts] == [
        *(seeds.draw() for _ in range(3)),
        11,
    ]
