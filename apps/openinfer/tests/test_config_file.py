import pytest

from openinfer import UsageError
from openinfer.options._config_file import read_config_file


@pytest.fixture
def read(tmp_path):
    def read_text(text):
        file = tmp_path / "server.yaml"
        file.write_text(text, encoding="utf-8")
        return read_config_file(str(file))

    return read_text


def test_keys_are_long_flags_with_dashes_or_underscores(read):
    assert read(
        "max_num_seqs: 3\nserved-model-name: [a, b]\nport: 9\n"
        "tp: 2\ncontext_length: 1k\ndtype: half\nenable-prefix-caching: false\n"
    ) == (
        {
            "max_model_len": 1000,
            "max_num_seqs": 3,
            "served_model_names": ["a", "b"],
            "port": 9,
            "tensor_parallel_size": 2,
            "dtype": "float16",
            "enable_prefix_caching": False,
        },
        {},
    )


@pytest.mark.parametrize("key", ["no-enable-prefix-caching", "disable-radix-cache"])
@pytest.mark.parametrize("value", [True, False])
def test_an_off_switch_means_the_opposite(read, key, value):
    assert read(f"{key}: {value}\n")[0] == {"enable_prefix_caching": not value}


def test_what_the_table_does_not_know_is_left_for_the_line(read):
    assert read("num-experts: 4\n") == ({}, {"num-experts": 4})


@pytest.mark.parametrize("text", ["", "# nothing\n", "port:\n", "host: ~\n"])
def test_nothing_given_is_nothing_set(read, text):
    assert read(text) == ({}, {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- a\n- b\n", "must be a mapping"),
        ("just words", "must be a mapping"),
        ("a: [1\n", "server.yaml"),
        ("port: many\n", "port: .*whole number"),
        ("device: tpu\n", "device must be one of"),
        ("enable-prefix-caching: 3\n", "enable-prefix-caching must be true or false"),
        ("model: {a: b}\n", "model must be one value"),
        ("port: 1\nhost: a\nport: 2\n", r"yaml: port is repeated in line 3"),
        ("num-experts: 1\nnum-experts: 1\n", "num-experts is repeated in line 2"),
        ("kv-events-config:\n  topic: a\n  topic: b\n", "topic is repeated in line 3"),
        ("page-size: 16\nblock_size: 16\n", "page-size and block_size are the same option"),
        (
            "enable-prefix-caching: true\nno-enable-prefix-caching: true\n",
            "yaml: enable-prefix-caching and no-enable-prefix-caching are the same option",
        ),
    ],
)
def test_what_cannot_be_read_is_a_sentence(read, text, words):
    with pytest.raises(UsageError, match=words):
        read(text)


def test_an_alias_of_itself_is_read_once(read):
    with pytest.raises(UsageError, match="model must be one value"):
        read("model: &a [*a]\n")


def test_a_file_that_is_no_text_is_a_sentence(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UsageError, match=r"x\.yaml"):
        read_config_file(str(file))
    with pytest.raises(UsageError, match=r"nowhere: No such file.*YAML"):
        read_config_file(str(tmp_path / "nowhere"))


def test_code_in_yaml_is_not_run(read):
    with pytest.raises(UsageError):
        read("model: !!python/object/apply:os.getcwd []\n")
