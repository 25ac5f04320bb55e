import openinfer_grammar


def test_every_public_name_exists_once():
    names = openinfer_grammar.__all__
    assert len(set(names)) == len(names)
    assert all(hasattr(openinfer_grammar, name) for name in names)
