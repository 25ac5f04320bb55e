from hypothesis import given
from hypothesis import strategies as st

from openinfer_contract import pack_ids
from openinfer_text.tokens._id_search import find_id


@given(st.lists(st.sampled_from([0, 1, 256, 65536, 1 << 24]), max_size=30))
def test_find_looks_at_whole_ids_only(ids):
    for wanted in (0, 1, 256):
        assert list(find_id(pack_ids(ids), wanted)) == [
            i for i, token_id in enumerate(ids) if token_id == wanted
        ]
