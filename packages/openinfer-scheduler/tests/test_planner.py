from openinfer_contract import CacheOptions


def sizes(plan):
    return [(row.slot, row.num_tokens, row.is_sampled) for row in plan.rows]


def test_decode_first_then_running_prefills_then_waiting(loop):
    subject = loop(max_num_batched_tokens=16)
    subject.add([1, 2, 3], max_tokens=20, ignore_eos=True)
    subject.add(range(10, 34), max_tokens=5, ignore_eos=True)
    subject.add(range(5, 20), max_tokens=5, ignore_eos=True)
    assert sizes(subject.plan()) == [(0, 3, True), (1, 13, False)]
    assert sizes(subject.plan()) == [(0, 1, True), (1, 11, True), (2, 4, False)]
    assert subject.plan() is None, "depth"
    subject.complete()
    third = subject.plan()
    assert sizes(third) == [(0, 1, True), (1, 1, True), (2, 11, True)]
    assert [row.token_ids is None for row in third.rows] == [True, True, False]
    assert third.num_tokens == 13
    subject.run()


def test_chunks_are_capped(loop):
    subject = loop(max_chunk_tokens=5)
    subject.add(range(12), max_tokens=1)
    seen = []
    while subject.scheduler.has_work:
        plan = subject.plan()
        if plan is not None:
            seen += sizes(plan)
        if subject.in_flight:
            subject.complete()
    assert seen == [(0, 5, False), (0, 5, False), (0, 2, True)]
    subject.run()


def test_the_plan_names_what_the_executor_needs(loop):
    subject = loop()
    subject.add([5, 6, 7, 8, 9], max_tokens=4, seed=3, num_output_prefix=2)
    plan = subject.plan()
    (start,) = plan.starts
    assert start.token_ids.tolist() == [5, 6, 7, 8, 9]
    assert (start.num_output_tokens, start.num_cached_tokens, start.seed) == (2, 0, 3)
    assert [ids.tolist() for ids in start.block_ids] == [[]]
    assert [len(ids) for ids in plan.rows[0].new_block_ids] == [2]
    assert plan.rows[0].token_ids.tolist() == [5, 6, 7, 8, 9]
    subject.run()


def test_length_ends_are_planned(loop):
    subject = loop(depth=3)
    subject.add([1, 2, 3], max_tokens=2, ignore_eos=True)
    assert subject.plan() is not None
    assert subject.plan() is not None
    assert subject.plan() is None
    subject.run()
    assert len(subject.output["r0"]) == 2


def test_a_slot_is_reused_by_the_plan_that_ends_it(loop):
    subject = loop(max_num_seqs=1)
    subject.add([1, 2], max_tokens=1)
    subject.add([3, 4], max_tokens=1)
    first = subject.plan()
    assert subject.plan() is None
    subject.complete()
    second = subject.plan()
    assert (first.ends, second.ends) == ((), (0,))
    assert second.starts[0].slot == 0
    subject.run()


def test_a_last_plan_only_announces_ends(loop):
    subject = loop()
    subject.add([1, 2], max_tokens=1)
    subject.plan()
    subject.complete()
    plan = subject.plan()
    assert (plan.ends, plan.starts, plan.rows) == ((0,), (), ())
    subject.run()


def crowded(loop, **options):
    """Two decoding sequences that fill the pool; the first needs a block next."""
    subject = loop(
        num_blocks=6, max_num_batched_tokens=40, watermark=0.0, max_model_len=24, **options
    )
    subject.add([1] * 11, max_tokens=13, ignore_eos=True)
    subject.add([2] * 12, max_tokens=12, ignore_eos=True)
    return subject


def test_a_preemption_waits_for_the_token_in_flight(loop):
    subject = crowded(loop, depth=2)
    assert sizes(subject.plan()) == [(0, 11, True), (1, 12, True)]
    # r1 cannot have a fourth block; r0 needs no block yet.
    assert sizes(subject.plan()) == [(0, 1, True)]
    subject.complete()
    # r0 needs a block: r1 releases its blocks at once, since it has no row in flight.
    plan = subject.plan()
    assert sizes(plan) == [(0, 1, True)]
    assert plan.ends == (1,)
    assert len(subject.output["r1"]) == 1
    subject.run()
    assert subject.ends["r1"].num_preemptions > 0
    assert subject.ends["r0"].num_preemptions == 0


def test_blocks_of_a_victim_in_flight_are_released_when_its_step_completes(loop):
    subject = loop(
        num_blocks=6, max_num_batched_tokens=40, watermark=0.0, max_model_len=24, depth=2
    )
    subject.add([1] * 11, max_tokens=13, ignore_eos=True)
    subject.add([2] * 10, max_tokens=12, ignore_eos=True)
    assert len(subject.plan().rows) == 2
    assert len(subject.plan().rows) == 2
    subject.complete()
    # Row 0 is at position 12 without a block. The victim has a row in flight, so no row is planned.
    assert subject.plan() is None
    assert subject.scheduler.load().num_running == 2
    assert len(subject.output["r1"]) == 1
    effects = subject.complete()
    assert [request_id for request_id, _ in effects] == ["r0", "r1"]
    assert len(subject.output["r1"]) == 2, "its token in flight counts"
    plan = subject.plan()
    assert plan.ends == (1,)
    assert sizes(plan) == [(0, 1, True)]
    assert subject.scheduler.load().num_waiting == 1
    subject.run()
    restart = subject.ends["r1"]
    assert restart.num_preemptions == 1
    assert sum(event.scheduled is not None for event in subject.events["r1"]) == 1


def test_one_victim_in_flight_is_enough(loop):
    subject = loop(
        num_blocks=9, max_num_batched_tokens=40, watermark=0.0, max_model_len=24, depth=2
    )
    subject.add([1] * 11, max_tokens=13, ignore_eos=True)
    subject.add([2] * 9, max_tokens=12, ignore_eos=True)
    subject.add([3] * 9, max_tokens=12, ignore_eos=True)
    for _ in range(2):
        assert len(subject.plan().rows) == 3
    subject.complete()
    assert sizes(subject.plan()) == [(1, 1, True)], "row 0 waits for the blocks of row 2"
    assert subject.scheduler.load().num_preemptions == 1
    subject.run()


def test_nothing_overtakes_a_victim_on_its_way_back(loop):
    subject = loop(
        num_blocks=6, max_num_batched_tokens=40, watermark=0.0, max_model_len=24, depth=3
    )
    subject.add([1] * 11, max_tokens=13, ignore_eos=True)
    subject.add([2] * 8, max_tokens=1)
    subject.add([3] * 2, max_tokens=12, ignore_eos=True)
    assert len(subject.plan().rows) == 3
    assert len(subject.plan().rows) == 2
    assert subject.plan() is None, "row 0 waits for the block of row 2"
    subject.add([4], max_tokens=1)
    subject.complete()
    plan = subject.plan()
    assert subject.scheduler.load().num_preemptions == 1
    assert sizes(plan) == [(0, 1, True)], "r1 has released two blocks, and r3 needs one"
    subject.run()


def test_the_oldest_is_never_preempted(loop):
    subject = loop(num_blocks=8, max_model_len=28, max_num_batched_tokens=30, max_num_seqs=5)
    for number in range(5):
        subject.add([number] * 5, max_tokens=23, ignore_eos=True)
    subject.run()
    assert subject.ends["r0"].num_preemptions == 0
    assert subject.scheduler.load().num_preemptions > 3


def test_decode_rows_cannot_starve_an_older_prefill(loop):
    class SmallChunksForTheOldest:
        """Lets younger sequences decode before the oldest has its prompt computed."""

        def order(self, sequences, now, /):
            return sequences

        def chunk(self, sequence, max_tokens, /):
            return 4 if sequence.arrival_index == 0 else max_tokens

        def victim(self, candidates, /):
            return candidates[-1]

    subject = loop(
        policy=SmallChunksForTheOldest(),
        num_blocks=8,
        watermark=0.0,
        max_model_len=32,
        max_num_batched_tokens=40,
    )
    subject.add([1] * 30, max_tokens=2, ignore_eos=True)
    for number in range(2, 5):
        subject.add([number] * 4, max_tokens=26, ignore_eos=True)
    num_steps = 0
    while "r0" not in subject.ends:
        subject.step()
        num_steps += 1
    assert num_steps <= 13, "8 chunks, a decode row, and the waits for two victims in flight"
    assert subject.ends["r0"].num_preemptions == 0
    assert not {"r1", "r2", "r3"} & set(subject.ends)
    subject.run()


def test_sequences_take_spare_blocks_while_there_are_plenty(loop):
    subject = loop(num_blocks=300, max_model_len=100)
    subject.add([1, 2, 3], max_tokens=90, ignore_eos=True)
    taken = []
    while subject.scheduler.has_work:
        plan = subject.plan()
        if plan is not None:
            taken += [len(row.new_block_ids[0]) for row in plan.rows]
        if subject.in_flight:
            subject.complete()
    assert [n for n in taken if n] == [1, 16, 6], "92 positions in all"
    subject.run()


def test_cached_duplicates_that_no_sequence_holds_take_no_room(loop):
    subject = loop(num_blocks=5, max_num_batched_tokens=40)
    subject.add([1] * 16, max_tokens=4, ignore_eos=True)
    subject.run()
    subject.add([1] * 16, max_tokens=5, ignore_eos=True)
    subject.run(max_steps=60)
    assert subject.ends["r1"].num_preemptions == 0


def test_a_lone_sequence_is_not_stuck_beside_duplicates_of_its_blocks(loop):
    subject = loop(num_blocks=5, max_num_batched_tokens=40)
    for max_tokens in (2, 12):
        unread = CacheOptions(read=False)
        subject.add([1] * 8, max_tokens=max_tokens, ignore_eos=True, cache=unread)
    subject.run(max_steps=60)
    assert subject.ends["r1"].num_preemptions == 1


def test_nothing_overtakes_a_running_sequence_short_of_blocks(loop):
    subject = loop(num_blocks=7, watermark=0.0, max_chunk_tokens=8, max_model_len=28, depth=1)
    subject.add([1] * 23, max_tokens=3, ignore_eos=True)
    subject.add([2] * 16, max_tokens=3, ignore_eos=True)
    subject.step()
    subject.add([3], max_tokens=2, ignore_eos=True)
    plan = subject.plan()
    assert sizes(plan) == [(0, 8, False)], "row 1 needs two blocks and there is one"
    assert subject.cache.num_available_blocks == 1
    assert plan.starts == ()
    subject.run()


def test_partly_forwarded_prompts_are_limited(loop):
    subject = loop(
        max_chunk_tokens=4, max_partial_prefills=2, max_num_batched_tokens=40, num_blocks=300
    )
    for number in range(3):
        subject.add([number] * 12, max_tokens=2, ignore_eos=True)
    subject.add([9] * 4, max_tokens=2, ignore_eos=True)
    assert sizes(subject.plan()) == [(0, 4, False), (1, 4, False)], "nothing overtakes r2"
    subject.complete()
    assert sizes(subject.plan()) == [(0, 4, False), (1, 4, False)]
    subject.complete()
    # r0 and r1 forward their last chunks, so r2 may be partly forwarded; r3 fits whole.
    assert sizes(subject.plan()) == [(0, 4, True), (1, 4, True), (2, 4, False), (3, 4, True)]
    subject.run()


def test_a_limit_of_partial_prefills_admits_prompts_that_fit_whole(loop):
    subject = loop(max_partial_prefills=1, max_num_batched_tokens=16, num_blocks=300)
    subject.add([1] * 6, max_tokens=2)
    subject.add([2] * 6, max_tokens=2)
    subject.add([3] * 20, max_tokens=2)
    assert sizes(subject.plan()) == [(0, 6, True), (1, 6, True), (2, 4, False)]
    subject.run()
