import openinfer_sampler
from openinfer_contract import FEATURES


def test_every_public_name_exists_once():
    names = openinfer_sampler.__all__
    assert len(set(names)) == len(names)
    assert all(hasattr(openinfer_sampler, name) for name in names)


def test_what_is_honoured_are_features_of_the_contract():
    assert set(FEATURES) >= openinfer_sampler.HONOURED
