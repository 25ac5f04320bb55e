import openinfer_nn


def test_all_names_exist_once():
    names = openinfer_nn.__all__
    assert len(set(names)) == len(names)
    for name in names:
        assert hasattr(openinfer_nn, name), name
