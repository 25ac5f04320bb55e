import msgspec
import pytest

from openinfer import UsageError
from openinfer.options._http_options import HttpOptions
from openinfer_frontend import FrontendConfig, TlsError


def test_defaults_are_the_front_ends():
    names = ("m",)
    config = FrontendConfig(served_model_names=names, version="")
    own = HttpOptions(served_model_names=names).for_config()
    assert {name: getattr(config, name) for name in own} == own


def test_keys_come_from_flags_or_the_environment():
    environment = {"OPENINFER_API_KEY": "e", "OPENINFER_ADMIN_API_KEY": "a"}
    assert HttpOptions.from_values({}, {}).api_keys == ()
    options = HttpOptions.from_values({}, environment)
    assert (options.api_keys, options.admin_api_key) == (("e",), "a")
    given = {"api_keys": ["x", "y"], "admin_api_key": "z"}
    options = HttpOptions.from_values(given, environment)
    assert (options.api_keys, options.admin_api_key) == (("x", "y"), "z")


def test_they_cross_the_process_boundary():
    options = HttpOptions.from_values({"allowed_origins": ["*"], "stall_timeout_s": 3.0}, {})
    assert msgspec.json.decode(msgspec.json.encode(options), type=HttpOptions) == options


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"api_keys": [""]}, "--api-key "),
        ({"stall_timeout_s": 0.0}, "--stall-timeout-s"),
        ({"resume_timeout_s": -1.0}, "--resume-timeout-s"),
        ({"drain_timeout_s": -1.0}, "--drain-timeout-s must"),
        ({"request_timeout_s": 0.0}, "^--request-timeout-s must be"),
        ({"metrics_prefix": "a-b"}, "--metrics-prefix"),
        ({"ssl_keyfile": "k.pem"}, "--ssl-certfile"),
    ],
)
def test_what_makes_no_sense_is_refused(values, words):
    with pytest.raises(UsageError, match=words):
        HttpOptions.from_values(values, {})


def test_a_certificate_that_is_not_there():
    with pytest.raises(TlsError, match=r"none\.pem"):
        HttpOptions.from_values({"ssl_certfile": "none.pem"}, {})
