"""What a schema is for xgrammar."""

import pytest

from openinfer_grammar._xgrammar import _checked

SHORT = {"type": "string", "maxLength": 3}


@pytest.mark.parametrize("name", ["x", "default", "enum", "type"])
@pytest.mark.parametrize("keyword", ["properties", "$defs"])
def test_lengths_are_patterns_whatever_the_name(keyword, name):
    schema = {"type": "object", keyword: {name: SHORT}}
    assert set(_checked(schema)[keyword][name]) == {"type", "pattern"}


def test_data_is_no_schema():
    assert _checked({"default": SHORT}) == {"default": SHORT}
