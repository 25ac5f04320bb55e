import openinfer_runtime


def test_every_public_name_exists_once():
    names = openinfer_runtime.__all__
    assert len(set(names)) == len(names)
    assert all(hasattr(openinfer_runtime, name) for name in names)
