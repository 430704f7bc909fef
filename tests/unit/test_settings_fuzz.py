"""Whatever stands in a URI or a setting: settings, or one clear line that keeps the password to itself."""

from __future__ import annotations

from urllib.parse import quote

from hypothesis import example, given, settings
from hypothesis import strategies as st

from meltano_ch_state.errors import ConfigurationError
from meltano_ch_state.settings import SETTING_NAMES, resolve

TRIES = 1_000
SECRET = "s3cr3t"
AWKWARD = st.text(alphabet=st.sampled_from(":/?#[]@!$&'()*+,;=%-._~ \t\n\x00éß\ud800aZ09"), max_size=12)
LOGIN = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
PART = AWKWARD | st.text(max_size=8)


def told(uri: str, **given: object) -> str:
    """The error's line; empty when it is fine."""
    line = ""
    try:
        resolve(uri, **given)
    except ConfigurationError as error:
        line = str(error)
    assert "\n" not in line
    return line


@settings(max_examples=TRIES, deadline=None)
@given(uri=st.text(max_size=60) | st.builds("clickhouse://{}".format, AWKWARD) | st.builds("chdb://{}".format, AWKWARD))
@example("clickhouse://[::1")
@example("clickhouse://host:99999999")
@example("clickhouse://host:٣")
@example("clickhouse://%zz@host")
@example("clickhouse://host/%ff")
@example("chdb://")
@example("//")
def test_any_text_for_a_uri_is_settings_or_one_line(uri: str) -> None:
    told(uri)


@settings(max_examples=TRIES, deadline=None)
@given(user=PART, host=PART, port=PART, path=PART, query=PART)
def test_the_password_of_a_uri_is_in_no_line(user: str, host: str, port: str, path: str, query: str) -> None:
    assert SECRET not in told(f"clickhouse://{user}:{SECRET}@{host}:{port}/{path}?{query}")


@settings(max_examples=TRIES, deadline=None)
@given(user=LOGIN, password=LOGIN)
def test_a_percent_encoded_login_comes_out_as_it_was(user: str, password: str) -> None:
    found = resolve(f"clickhouse://{quote(user, '')}:{quote(password, '')}@host")
    assert (found.user, found.password) == (user, password)


@settings(max_examples=TRIES, deadline=None)
@given(
    name=st.sampled_from(sorted(SETTING_NAMES["clickhouse"])),
    value=PART | st.integers() | st.floats() | st.booleans() | st.none() | st.binary(max_size=4),
)
def test_any_value_of_any_setting_is_taken_or_refused_in_one_line(name: str, value: object) -> None:
    line = told("clickhouse://host", **{name: value})
    assert not line or name in line
