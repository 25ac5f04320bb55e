import types

import openinfer_kv_cache
from openinfer_contract import OpenInferError


def test_all_names_exist_and_nothing_else_is_public():
    exported = openinfer_kv_cache.__all__
    assert len(set(exported)) == len(exported) <= 40
    public = {
        name
        for name, value in vars(openinfer_kv_cache).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public == set(exported)


def test_public_names_are_grouped_by_meaning():
    exported = openinfer_kv_cache.__all__
    errors = [name for name in exported if _is_error(getattr(openinfer_kv_cache, name))]
    assert exported[0] == "KVCache"
    assert exported[-len(errors) :] == errors
    assert errors[0] == "KVCacheError"


def _is_error(value):
    return isinstance(value, type) and issubclass(value, OpenInferError)
