import openinfer_text


def test_every_public_name_exists_once():
    names = openinfer_text.__all__
    assert len(names) == len(set(names))
    for name in names:
        assert getattr(openinfer_text, name).__doc__ or name == "ContentFormat"


def test_nothing_public_is_left_out():
    exported = {
        name
        for name, value in vars(openinfer_text).items()
        if not name.startswith("_") and type(value).__name__ != "module"
    }
    assert exported == set(openinfer_text.__all__)
