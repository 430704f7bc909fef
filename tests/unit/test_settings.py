"""The resolved configuration: where a setting may stand, which place wins, and what bad input is told."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from meltano_ch_state.errors import ConfigurationError, MissingSettingError, StateBackendError
from meltano_ch_state.settings import SETTING_NAMES, Names, Settings, from_environment, resolve

SECRET = "p@ss:w/rd%21 ?#é"
A_FILE = __file__
SAMPLES: dict[str, tuple[str, object]] = {
    "host": ("db.example.com", "db.example.com"),
    "port": ("9123", 9123),
    "database": ("some db", "some db"),
    "user": ("o'brien@corp", "o'brien@corp"),
    "password": (SECRET, SECRET),
    "secure": ("yes", True),
    "verify": ("off", False),
    "ca_cert": (A_FILE, A_FILE),
    "schema": ("ops-1", "ops-1"),
    "table": ("bookmarks", "bookmarks"),
    "lock_mode": ("Keeper", "keeper"),
    "lock_settle_seconds": ("0.25", 0.25),
    "stale_lock_seconds": ("60", 60.0),
    "lock_acquire_timeout_seconds": ("5.5", 5.5),
    "lock_retry_seconds": ("0", 0.0),
    "auto_upgrade": ("false", False),
    "history_days": ("30", 30),
    "cluster": ("{cluster}", "{cluster}"),
    "replicated": ("true", True),
}
"""A value of each setting as text, and what it means."""

BASES = {"clickhouse": "clickhouse://", "chdb": "chdb:///data/state"}
EVERY_SETTING = [(scheme, name) for scheme, names in SETTING_NAMES.items() for name in names]
for_every_setting = pytest.mark.parametrize(("scheme", "name"), EVERY_SETTING)

OPTIONS = (
    "host, port, database, user, password, secure, verify, ca_cert, schema, table, lock_mode,"
    " lock_settle_seconds, stale_lock_seconds, lock_acquire_timeout_seconds, lock_retry_seconds, auto_upgrade,"
    " history_days, cluster, replicated"
)
CHDB_OPTIONS = (
    "schema, table, lock_mode, lock_settle_seconds, stale_lock_seconds, lock_acquire_timeout_seconds,"
    " lock_retry_seconds, auto_upgrade, history_days"
)
NO_HOST = (
    "Setting state_backend.clickhouse.host is missing."
    " Set it, or write the host into state_backend.uri: clickhouse://user@host:8123."
)
NO_FOLDER = "state_backend.uri names no folder. Write chdb:///absolute/folder or chdb://folder."
BAD_PORT = "The port in state_backend.uri is not one. Use a whole number from 1 to 65535."
OTHER_SCHEME = "state_backend.uri has another scheme. Begin it with clickhouse:// or chdb://."
CLUSTER_LIMITS = "Use up to 100 letters, digits, '_', '-' and '.', or a macro such as {cluster}."
LEASE_LIMITS = "Use a number of seconds from 0.1 to 86399."


def host_for(scheme: str, name: str) -> dict[str, str]:
    """What a server needs besides the setting under test."""
    return {"host": "elsewhere"} if scheme == "clickhouse" and name != "host" else {}


def uri_with(scheme: str, **options: str) -> str:
    return f"{BASES[scheme]}?{urlencode(options, quote_via=quote)}"


def refusal(uri: str | None, **given: object) -> StateBackendError:
    with pytest.raises(ConfigurationError) as caught:
        resolve(uri, **given)
    return caught.value


@for_every_setting
def test_a_setting_may_stand_in_the_uri(scheme: str, name: str) -> None:
    text, value = SAMPLES[name]
    settings = resolve(uri_with(scheme, **host_for(scheme, name), **{name: text}))
    assert getattr(settings, name) == value


@for_every_setting
@pytest.mark.parametrize("typed", [False, True], ids=["text", "typed"])
def test_a_setting_may_be_given_by_its_name(scheme: str, name: str, typed: bool) -> None:
    settings = resolve(uri_with(scheme, **host_for(scheme, name)), **{name: SAMPLES[name][typed]})
    assert getattr(settings, name) == SAMPLES[name][1]


@for_every_setting
def test_a_setting_may_be_a_variable_as_meltano_names_it(scheme: str, name: str) -> None:
    text, value = SAMPLES[name]
    variable = f"MELTANO_STATE_BACKEND_{scheme.upper()}_{name.upper()}"
    settings = from_environment({variable: text}, uri_with(scheme, **host_for(scheme, name)))
    assert getattr(settings, name) == value


@pytest.mark.parametrize("name", SETTING_NAMES["clickhouse"])
def test_a_setting_of_a_server_may_be_a_plain_variable(name: str) -> None:
    text, value = SAMPLES[name]
    settings = from_environment({f"CLICKHOUSE_{name.upper()}": text}, **host_for("clickhouse", name))
    assert getattr(settings, name) == value


@for_every_setting
def test_a_given_setting_wins_over_the_uri(scheme: str, name: str) -> None:
    uri = uri_with(scheme, **host_for(scheme, name), **{name: SAMPLES[name][0]})
    other = resolve(BASES[scheme], host="other") if scheme == "clickhouse" else resolve(BASES[scheme])
    default = getattr(other, name)
    if default is None:
        default = False if name == "replicated" else 7.0
    assert getattr(resolve(uri, **{name: default}), name) == default != SAMPLES[name][1]


@for_every_setting
def test_none_means_that_a_setting_is_not_given(scheme: str, name: str) -> None:
    uri = uri_with(scheme, **host_for(scheme, name), **{name: SAMPLES[name][0]})
    assert getattr(resolve(uri, **{name: None}), name) == SAMPLES[name][1]


def test_every_field_of_the_settings_is_documented_by_a_sample() -> None:
    assert {field.name for field in fields(Settings)} == {"scheme", "path", *SAMPLES}


def test_the_defaults_need_a_host_only() -> None:
    assert resolve("clickhouse://db") == Settings(
        scheme="clickhouse",
        path="",
        host="db",
        port=8123,
        database="default",
        user="default",
        password="",
        secure=False,
        verify=True,
        ca_cert="",
        schema="meltano",
        table="state",
        lock_mode="insert",
        lock_settle_seconds=None,
        stale_lock_seconds=300.0,
        lock_acquire_timeout_seconds=30.0,
        lock_retry_seconds=1.0,
        auto_upgrade=True,
        history_days=90,
    )


def test_the_usual_parts_of_a_uri_are_read() -> None:
    settings = resolve("clickhouse://loader:pw@db.example.com:9000/analytics?schema=ops&secure=true")
    assert (settings.user, settings.password, settings.host, settings.port) == ("loader", "pw", "db.example.com", 9000)
    assert (settings.database, settings.schema, settings.secure) == ("analytics", "ops", True)


def test_credentials_and_database_are_percent_decoded() -> None:
    settings = resolve(f"clickhouse://{quote('o@b/c:d', '')}:{quote(SECRET, '')}@db/{quote('a b/é', '')}")
    assert (settings.user, settings.password, settings.database) == ("o@b/c:d", SECRET, "a b/é")


def test_a_plus_in_the_password_stays_a_plus() -> None:
    assert resolve("clickhouse://u:a+b@db").password == "a+b"


def test_a_password_may_come_as_a_setting_only() -> None:
    assert resolve("clickhouse://u@db", password=SECRET).password == SECRET


def test_an_empty_password_overrides_that_of_the_uri() -> None:
    assert resolve("clickhouse://u:old@db", password="").password == ""
    environment = {"CLICKHOUSE_PASSWORD": "", "MELTANO_STATE_BACKEND_URI": "clickhouse://u:old@db"}
    assert from_environment(environment).password == ""


def test_a_uri_given_outright_wins_over_variables_which_only_fill_its_gaps() -> None:
    environment = {"CLICKHOUSE_HOST": "production", "CLICKHOUSE_USER": "root", "CLICKHOUSE_PASSWORD": "hush"}
    settings = from_environment(environment, "clickhouse://me@test")
    assert (settings.host, settings.user, settings.password) == ("test", "me", "hush")


def test_settings_alone_make_a_server() -> None:
    settings = resolve(host="db", user="loader", port=8124)
    assert (settings.scheme, settings.host, settings.user, settings.port) == ("clickhouse", "db", "loader", 8124)


def test_a_host_may_come_as_a_setting_beside_a_uri_without_one() -> None:
    assert resolve("clickhouse://", host="db").host == "db"


@pytest.mark.parametrize(
    ("uri", "host", "port", "address"),
    [
        ("clickhouse://[::1]", "::1", 8123, "[::1]:8123"),
        ("clickhouse://u:p@[2001:db8::7]:8124/d", "2001:db8::7", 8124, "[2001:db8::7]:8124"),
        ("clickhouse://127.0.0.1:1", "127.0.0.1", 1, "127.0.0.1:1"),
        ("clickhouse://db", "db", 8123, "db:8123"),
    ],
)
def test_a_host_may_be_an_address(uri: str, host: str, port: int, address: str) -> None:
    settings = resolve(uri)
    assert (settings.host, settings.port, settings.address) == (host, port, address)


@pytest.mark.parametrize(
    ("uri", "given", "port"),
    [
        ("clickhouse://db?secure=true", {}, 8443),
        ("clickhouse://db", {"secure": True}, 8443),
        ("clickhouse://db:8123?secure=true", {}, 8123),
        ("clickhouse://db?secure=true", {"port": 9440}, 9440),
        ("clickhouse://db?secure=true", {"secure": "false"}, 8123),
    ],
)
def test_tls_implies_its_port_unless_one_is_given(uri: str, given: dict[str, object], port: int) -> None:
    assert resolve(uri, **given).port == port


@pytest.mark.parametrize("text", ["1", "true", "TRUE", "Yes", "on", " true "])
def test_a_boolean_may_be_written_as_true(text: str) -> None:
    assert resolve("clickhouse://db", secure=text).secure is True


@pytest.mark.parametrize("text", ["0", "false", "False", "NO", "off"])
def test_a_boolean_may_be_written_as_false(text: str) -> None:
    assert resolve("clickhouse://db", verify=text).verify is False


def test_the_scheme_may_be_in_capitals() -> None:
    assert resolve("CLICKHOUSE://db").scheme == "clickhouse"


def test_an_absolute_folder_is_taken_as_it_is() -> None:
    settings = resolve("chdb:///data/my%20state")
    assert (settings.scheme, settings.path, settings.address) == ("chdb", "/data/my state", "/data/my state")


def test_a_relative_folder_begins_where_the_process_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve("chdb://.meltano/State").path == str(tmp_path / ".meltano/State")


def test_a_folder_keeps_its_capitals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve("chdb://State").path == str(tmp_path / "State")


def test_the_tables_are_named_after_the_state_table() -> None:
    names = resolve("clickhouse://db", schema="ops", table="marks").names
    assert names == Names("ops", "marks")
    assert (names.lock_table, names.version_table) == ("marks_lock", "marks_alembic")


def test_equal_settings_are_equal_whatever_way_they_came() -> None:
    assert resolve("clickhouse://u:p@db:8123/default") == resolve(host="db", user="u", password="p")


@pytest.mark.parametrize(
    ("uri", "given", "line"),
    [
        (None, {}, NO_HOST),
        ("", {}, NO_HOST),
        ("clickhouse://", {}, NO_HOST),
        ("clickhouse:///meltano", {}, NO_HOST),
        ("clickhouse://u:p@/meltano", {}, NO_HOST),
        ("clickhouse://db", {"host": ""}, NO_HOST),
        ("chdb://", {}, NO_FOLDER),
        ("chdb:///", {}, NO_FOLDER),
        ("chdb://?schema=ops", {}, NO_FOLDER),
    ],
)
def test_what_is_missing_is_named(uri: str | None, given: dict[str, object], line: str) -> None:
    error = refusal(uri, **given)
    assert isinstance(error, MissingSettingError)
    assert str(error) == line


@pytest.mark.parametrize(
    ("uri", "line"),
    [
        ("clickhouse://db:99999", BAD_PORT),
        ("clickhouse://db:abc", BAD_PORT),
        ("clickhouse://db:-1", BAD_PORT),
        ("clickhouse://::1:8123", BAD_PORT),
        (
            "clickhouse://db:0",
            "Setting state_backend.clickhouse.port is '0'. Use a whole number from 1 to 65535.",
        ),
        (
            "clickhouse://db?nope=1",
            f"Unknown option 'nope' in state_backend.uri. Known options are {OPTIONS}.",
        ),
        (
            "clickhouse://db?Secure=true",
            f"Unknown option 'Secure' in state_backend.uri. Known options are {OPTIONS}.",
        ),
        (
            "chdb:///data?host=db",
            f"Unknown option 'host' in state_backend.uri. Known options are {CHDB_OPTIONS}.",
        ),
        (
            "clickhouse://db?secure=maybe",
            "Setting state_backend.clickhouse.secure is 'maybe'. Use true or false.",
        ),
        ("clickhouse://db?secure", "Setting state_backend.clickhouse.secure is ''. Use true or false."),
        ("chdb:///data?auto_upgrade=2", "Setting state_backend.chdb.auto_upgrade is '2'. Use true or false."),
        ("clickhouse://db#schema=ops", "state_backend.uri has a part after '#'. Write '#' as %23."),
        ("postgresql://db", OTHER_SCHEME),
        ("clickhouse+native://db", OTHER_SCHEME),
        ("db:8123", OTHER_SCHEME),
        ("clickhouse:db", OTHER_SCHEME),
        ("clickhouse://[::1", "The host in state_backend.uri is malformed. Put an IPv6 one in brackets."),
    ],
)
def test_a_bad_uri_is_one_line_that_names_the_part_and_the_remedy(uri: str, line: str) -> None:
    assert str(refusal(uri)) == line


@pytest.mark.parametrize(
    ("name", "value", "complaint", "remedy"),
    [
        ("port", 99999, "'99999'", "Use a whole number from 1 to 65535."),
        ("port", "abc", "'abc'", "Use a whole number from 1 to 65535."),
        ("port", "", "''", "Use a whole number from 1 to 65535."),
        ("history_days", 0, "'0'", "Use a whole number of days from 1 to 10000."),
        ("history_days", "1.5", "'1.5'", "Use a whole number of days from 1 to 10000."),
        ("history_days", 10_001, "'10001'", "Use a whole number of days from 1 to 10000."),
        ("port", True, "'True'", "Use a whole number from 1 to 65535."),
        ("secure", "maybe", "'maybe'", "Use true or false."),
        ("verify", 2, "'2'", "Use true or false."),
        ("schema", "a`b", "'a`b'", "Use up to 100 letters, digits, '_' and '-'."),
        ("schema", "", "''", "Use up to 100 letters, digits, '_' and '-'."),
        ("table", "a`b", "'a`b'", "Use up to 100 letters, digits, '_' and '-'."),
        ("table", "a.b", "'a.b'", "Use up to 100 letters, digits, '_' and '-'."),
        ("table", "t\n", r"'t\n'", "Use up to 100 letters, digits, '_' and '-'."),
        ("table", "x" * 101, f"'{'x' * 101}'", "Use up to 100 letters, digits, '_' and '-'."),
        ("lock_settle_seconds", -1, "'-1'", "Use a number of seconds of at least 0."),
        ("lock_acquire_timeout_seconds", "-0.5", "'-0.5'", "Use a number of seconds of at least 0."),
        ("lock_acquire_timeout_seconds", "inf", "'inf'", "Use a number of seconds of at least 0."),
        ("lock_acquire_timeout_seconds", "soon", "'soon'", "Use a number of seconds of at least 0."),
        ("lock_retry_seconds", "nan", "'nan'", "Use a number of seconds of at least 0."),
        ("stale_lock_seconds", -300, "'-300'", LEASE_LIMITS),
        ("stale_lock_seconds", 0, "'0'", LEASE_LIMITS),
        ("stale_lock_seconds", 86_400, "'86400'", LEASE_LIMITS),
        ("stale_lock_seconds", "604800", "'604800'", LEASE_LIMITS),
        ("lock_mode", "zookeeper", "'zookeeper'", "Use insert, keeper or auto."),
        ("ca_cert", "/nowhere/ca.pem", "'/nowhere/ca.pem'", "Name a PEM file that can be read."),
        ("ca_cert", "/", "'/'", "Name a PEM file that can be read."),
        ("cluster", "a'b", '"a\'b"', CLUSTER_LIMITS),
        ("cluster", "{a}{b}", "'{a}{b}'", CLUSTER_LIMITS),
        ("replicated", "maybe", "'maybe'", "Use true or false."),
        ("host", "db\nevil", r"'db\nevil'", "Leave out control characters."),
        ("user", "a\x00b", r"'a\x00b'", "Leave out control characters."),
    ],
)
def test_a_bad_setting_is_one_line_that_names_it_and_the_remedy(
    name: str, value: object, complaint: str, remedy: str
) -> None:
    line = f"Setting state_backend.clickhouse.{name} is {complaint}. {remedy}"
    assert str(refusal("clickhouse://db", **{name: value})) == line


def test_a_bad_option_of_the_uri_is_told_like_the_setting() -> None:
    line = "Setting state_backend.chdb.table is 'a`b'. Use up to 100 letters, digits, '_' and '-'."
    assert str(refusal("chdb:///data?table=a%60b")) == line


def test_a_port_of_thousands_of_digits_is_refused_like_any_other() -> None:
    assert "Use a whole number from 1 to 65535." in str(refusal("clickhouse://db", port="9" * 5_000))


def test_an_unknown_setting_is_named() -> None:
    line = f"Unknown setting state_backend.clickhouse.nope. Known settings are {OPTIONS}."
    assert str(refusal("clickhouse://db", nope=1)) == line


def test_a_setting_of_a_server_means_nothing_to_the_embedded_engine() -> None:
    line = f"Unknown setting state_backend.chdb.host. Known settings are {CHDB_OPTIONS}."
    assert str(refusal("chdb:///data", host="db")) == line


@pytest.mark.parametrize("show", [repr, str, "{}".format, "{!r}".format])
def test_no_text_of_the_settings_shows_the_password(show: object) -> None:
    assert callable(show)
    shown = show(resolve(f"clickhouse://u:{quote(SECRET, '')}@db", ca_cert=A_FILE))
    assert SECRET not in shown
    assert quote(SECRET, "") not in shown
    assert "password" not in shown


@pytest.mark.parametrize(
    "uri",
    [
        "clickhouse://u:hushhush@db:abc",
        "clickhouse://u:hushhush@db?nope=1",
        "clickhouse://u:hushhush@db?secure=maybe",
        "clickhouse://u:hushhush@",
        "clickhouse://u:hushhush@[::1",
        "clickhouse://u:hushhush@db#x",
        "clickhous://u:hushhush@db",
        # not percent-encoded, so that a part of the password looks like another part of the URI
        "clickhouse://u:hush/hushhush@db",
        "clickhouse://u:hush?hushhush@db",
        "clickhouse://u:hush#hushhush@db",
        "clickhouse://u:12/hushhush@db",
    ],
)
def test_no_error_about_a_uri_shows_its_password(uri: str) -> None:
    error = refusal(uri)
    assert "hush" not in str(error)
    assert "hush" not in repr((error, error.__cause__))


def test_variables_win_over_the_uri() -> None:
    environ = {
        "MELTANO_STATE_BACKEND_URI": "clickhouse://u@db:1?schema=one",
        "MELTANO_STATE_BACKEND_CLICKHOUSE_SCHEMA": "two",
        "CLICKHOUSE_PORT": "2",
    }
    settings = from_environment(environ)
    assert (settings.user, settings.host, settings.port, settings.schema) == ("u", "db", 2, "two")


def test_meltanos_variables_win_over_the_plain_ones() -> None:
    environ = {"MELTANO_STATE_BACKEND_CLICKHOUSE_HOST": "meltanos", "CLICKHOUSE_HOST": "plain"}
    assert from_environment(environ).host == "meltanos"


def test_given_settings_win_over_variables() -> None:
    environ = {"MELTANO_STATE_BACKEND_CLICKHOUSE_HOST": "variable", "CLICKHOUSE_TABLE": "variable"}
    settings = from_environment(environ, host="given", table=None)
    assert (settings.host, settings.table) == ("given", "variable")


def test_a_given_uri_replaces_that_of_the_environment() -> None:
    environ = {"MELTANO_STATE_BACKEND_URI": "clickhouse://old?schema=old"}
    settings = from_environment(environ, "clickhouse://new")
    assert (settings.host, settings.schema) == ("new", "meltano")


def test_variables_of_the_other_scheme_do_not_count() -> None:
    environ = {
        "MELTANO_STATE_BACKEND_URI": "chdb:///data",
        "MELTANO_STATE_BACKEND_CHDB_TABLE": "mine",
        "MELTANO_STATE_BACKEND_CLICKHOUSE_SCHEMA": "others",
        "CLICKHOUSE_HOST": "others",
        "CLICKHOUSE_SCHEMA": "others",
    }
    settings = from_environment(environ)
    assert (settings.scheme, settings.path, settings.table, settings.schema) == ("chdb", "/data", "mine", "meltano")


def test_an_empty_uri_variable_is_none() -> None:
    assert from_environment({"MELTANO_STATE_BACKEND_URI": "", "CLICKHOUSE_HOST": "db"}).host == "db"


def test_an_environment_without_a_host_is_told_so() -> None:
    with pytest.raises(MissingSettingError) as caught:
        from_environment({})
    assert str(caught.value) == NO_HOST


def test_a_bad_variable_is_told_by_the_settings_name() -> None:
    with pytest.raises(ConfigurationError) as caught:
        from_environment({"CLICKHOUSE_HOST": "db", "CLICKHOUSE_SECURE": "maybe"})
    assert str(caught.value) == "Setting state_backend.clickhouse.secure is 'maybe'. Use true or false."


def test_names_refuse_what_is_unsafe_wherever_they_are_made() -> None:
    with pytest.raises(ConfigurationError, match="letters, digits"):
        Names("ops; DROP DATABASE ops", "state")


@pytest.mark.parametrize(
    ("given", "replicated"),
    [
        ({}, False),
        ({"replicated": "false"}, False),
        ({"replicated": "true"}, True),
        ({"cluster": "prod"}, True),
        ({"cluster": "prod", "replicated": "true"}, True),
        ({"cluster": ""}, False),
    ],
)
def test_a_cluster_has_replicated_tables(given: dict[str, str], replicated: bool) -> None:
    assert resolve("clickhouse://db", **given).topology.is_replicated is replicated


def test_plain_tables_on_a_cluster_are_refused() -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve("clickhouse://db", cluster="prod", replicated=False)
    assert str(caught.value) == (
        "Setting state_backend.clickhouse.replicated is false, but there is a cluster: its servers would share no rows."
        " Leave it out, or leave out state_backend.clickhouse.cluster."
    )
