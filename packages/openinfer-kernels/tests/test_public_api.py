import openinfer_kernels


def test_all_names_exist_once():
    names = openinfer_kernels.__all__
    assert len(set(names)) == len(names)
    for name in names:
        assert hasattr(openinfer_kernels, name), name


def test_every_planner_has_its_spec():
    planners = {name for name in openinfer_kernels.__all__ if name.startswith("plan_")}
    assert len(planners) == 11
    specs = {name for name in openinfer_kernels.__all__ if name.endswith("Spec")}
    assert len(specs) == 11
