import pytest

from openinfer_contract import PluginError, PluginGroup

_MODULE = """
GOOD = 3


class Hostile:
    def __radd__(self, other):
        raise ZeroDivisionError("never\\nadd")


HOSTILE = Hostile()
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a distribution with entry points of group `some.group` at the front of the path."""

    def write(name, **points):
        info = tmp_path / name / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        rows = "".join(f"{point} = {target}\n" for point, target in points.items())
        (info / "entry_points.txt").write_text(f"[some.group]\n{rows}")
        (tmp_path / name / f"{name}_module.py").write_text(_MODULE)
        monkeypatch.syspath_prepend(tmp_path / name)

    return write


@pytest.fixture
def group():
    return PluginGroup("some.group", "number", lambda loaded: 1 + loaded)


_BROKEN = {
    "absent": "plug_module:NOPE",
    "moduleless": "no_such_module:GOOD",
    "hostile": "plug_module:HOSTILE",
}


def test_what_is_not_installed_is_not_there(group):
    assert group.names() == ()
    assert group.load_all() == group.broken() == {}
    with pytest.raises(KeyError):
        group.load("good")


def test_a_broken_one_leaves_the_others_alone(install, group, caplog):
    install("plug", good="plug_module:GOOD", **_BROKEN)
    assert group.names() == ("absent", "good", "hostile", "moduleless")
    assert group.load_all() == group.load_all() == {"good": 4}
    assert group.load("good") == 4
    warned = [record.message for record in caplog.records]
    assert len(warned) == len(_BROKEN), "each once"
    for name, message in zip(sorted(_BROKEN), warned, strict=True):
        assert message.startswith(f"the number {name} of plug 1.0 cannot be loaded from ")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent", "AttributeError: module 'plug_module' has no attribute 'NOPE'"),
        ("moduleless", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("hostile", "ZeroDivisionError: never add"),
    ],
)
def test_to_use_a_broken_one_is_a_sentence(install, group, caplog, name, reason):
    install("plug", good="plug_module:GOOD", **_BROKEN)
    with pytest.raises(PluginError) as caught:
        group.load(name)
    error = caught.value
    assert (error.name, error.package, error.reason) == (name, "plug 1.0", reason)
    assert str(error) == str(group.broken()[name])
    assert str(error) == (
        f"the number {name} of plug 1.0 cannot be loaded from {_BROKEN[name]} ({reason}); "
        "repair or uninstall that package"
    )
    assert set(group.broken()) == set(_BROKEN)
    assert group.load_all() == {"good": 4}
    assert not caplog.records, "who asked what is broken is not warned of it"


def test_the_first_on_the_path_counts(install, group):
    install("behind", twice="behind_module:NOPE")
    install("before", twice="before_module:GOOD")
    assert group.load_all() == {"twice": 4}
    assert group.load("twice") == 4
    assert not group.broken()
