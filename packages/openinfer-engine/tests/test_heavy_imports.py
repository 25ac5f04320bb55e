import gc

import pytest

from openinfer_engine import heavy_imports


@pytest.fixture(autouse=True)
def collector():
    yield
    gc.unfreeze()
    gc.enable()


def test_the_collector_rests_and_goes_on():
    with heavy_imports():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), heavy_imports():
        raise ImportError
    assert gc.isenabled()
    gc.disable()
    with heavy_imports():
        pass
    assert not gc.isenabled()


def test_what_stays_is_kept_out_of_sight_only_where_the_process_does_so():
    with heavy_imports():
        imported = [[]]
    assert gc.get_freeze_count() == 0
    gc.freeze()
    with heavy_imports():
        imported = [[]]
    assert not any(one is imported for one in gc.get_objects())
