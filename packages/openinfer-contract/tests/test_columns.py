import pytest

from openinfer_contract import num_ids, pack_floats, pack_ids, unpack_floats, unpack_ids


@pytest.mark.parametrize("ids", [[], [0], [1, 2**32 - 1, 7], list(range(1000))])
def test_ids_round_trip(ids: list[int]) -> None:
    column = pack_ids(ids)
    assert unpack_ids(column) == ids
    assert num_ids(column) == len(ids)


def test_ids_are_little_endian() -> None:
    assert pack_ids([1, 0x01020304]) == b"\x01\0\0\0\x04\x03\x02\x01"


@pytest.mark.parametrize("value", [-1, 2**32])
def test_ids_that_do_not_fit_raise(value: int) -> None:
    with pytest.raises(OverflowError):
        pack_ids([value])


def test_floats_round_trip() -> None:
    assert unpack_floats(pack_floats([0.5, -1.25])) == [0.5, -1.25]
    assert pack_floats([1.0]) == b"\0\0\x80?"


@pytest.mark.parametrize("unpack", [unpack_ids, unpack_floats])
def test_a_cut_column_raises(unpack: object) -> None:
    with pytest.raises(ValueError):
        unpack(b"12345")  # type: ignore[operator]


def test_any_iterable_packs() -> None:
    assert pack_ids(i * i for i in range(3)) == pack_ids([0, 1, 4])
