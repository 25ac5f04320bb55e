import openinfer_scheduler


def test_all_names_exist_once():
    names = openinfer_scheduler.__all__
    assert len(set(names)) == len(names)
    for name in names:
        assert getattr(openinfer_scheduler, name) is not None


def test_everything_public_is_listed():
    public = {
        name
        for name, value in vars(openinfer_scheduler).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("openinfer_")
    }
    assert public - {"errors"} <= set(openinfer_scheduler.__all__)
