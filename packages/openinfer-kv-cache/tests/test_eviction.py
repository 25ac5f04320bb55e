import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from openinfer_kv_cache.eviction._lru import EvictionQueue

NUM = 8
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["push", "remove", "pop"]), st.permutations(range(NUM))),
    max_size=60,
)


@given(OPERATIONS)
def test_the_eviction_queue_is_an_ordered_set(operations):
    queue, model = EvictionQueue(NUM), []
    for operation, ids in operations:
        chosen = ids[: ids[0]]
        if operation == "push":
            chosen = [i for i in chosen if i not in model]
            queue.push(np.array(chosen, np.int32))
            model += chosen
        elif operation == "remove":
            chosen = [i for i in chosen if i in model]
            queue.remove(np.array(chosen, np.int32))
            model = [i for i in model if i not in chosen]
        else:
            num = min(ids[0], len(model))
            assert queue.pop(num).tolist() == model[:num]
            del model[:num]
        assert len(queue) == len(model)
        assert not model or queue.peek() == ((), model[0])
    assert queue.clear().tolist() == model
