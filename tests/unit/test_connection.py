"""What engine_for makes of settings, without connecting to anything."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from meltano_ch_state import connection
from meltano_ch_state.connection import engine_for
from meltano_ch_state.errors import ConfigurationError
from meltano_ch_state.settings import resolve

PASSWORD = "s3:cr@t/%21 ü?#"


@pytest.fixture(autouse=True)
def no_engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    engines: dict[Any, Any] = {}
    monkeypatch.setattr(connection, "_engines", engines)
    yield
    for engine in engines.values():
        engine.dispose()


def connect_arguments(uri: str, **settings: object) -> dict[str, Any]:
    engine = engine_for(resolve(uri, **settings))
    return dict(engine.dialect.create_connect_args(engine.url)[1])


def test_making_an_engine_connects_to_nothing() -> None:
    assert engine_for(resolve("clickhouse://nowhere.invalid:1")).pool.checkedout() == 0  # type: ignore[attr-defined]


def test_making_an_embedded_engine_makes_no_folder(tmp_path: Path) -> None:
    engine_for(resolve(f"chdb://{tmp_path}/state"))
    assert list(tmp_path.iterdir()) == []


def test_equal_settings_share_an_engine() -> None:
    assert engine_for(resolve("clickhouse://a:b@host")) is engine_for(resolve("clickhouse://a:b@host:8123/default"))


def test_settings_that_do_not_concern_the_connection_share_an_engine() -> None:
    assert engine_for(resolve("clickhouse://host?schema=one")) is engine_for(resolve("clickhouse://host?schema=two"))


@pytest.mark.parametrize("other", ["//b@host", "//a:x@host", "//a@host:1", "//a@host/db", "//a@host?secure=true"])
def test_another_target_or_login_has_an_engine_of_its_own(other: str) -> None:
    assert engine_for(resolve("clickhouse://a@host")) is not engine_for(resolve(f"clickhouse:{other}"))


def test_two_spellings_of_a_folder_share_an_engine(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert engine_for(resolve(f"chdb://{tmp_path}/link/")) is engine_for(resolve(f"chdb://{tmp_path}/real"))


def test_odd_characters_reach_the_driver_as_they_are() -> None:
    uri = f"clickhouse://us%40er:{quote(PASSWORD, '')}@host/a%20b"
    arguments = connect_arguments(uri)
    assert (arguments["username"], arguments["password"], arguments["database"]) == ("us@er", PASSWORD, "a b")


@pytest.mark.parametrize("folder", ["with space", "100%", "%41", "ha#sh", "a&b=c", "ünï-中", "quo'te"])
def test_an_odd_folder_reaches_the_driver_as_it_is(tmp_path: Path, folder: str) -> None:
    uri = f"chdb://{quote(str(tmp_path / folder))}"
    assert connect_arguments(uri) == {"interface": "chdb", "path": str(tmp_path.resolve() / folder)}


def test_an_ipv6_address_reaches_the_driver_without_brackets() -> None:
    assert connect_arguments("clickhouse://[::1]:9")["host"] == "::1"


def test_a_password_is_never_shown() -> None:
    engine = engine_for(resolve("clickhouse://user@host", password="hunter2"))
    assert "hunter2" not in f"{engine} {engine!r} {engine.url} {engine.url!r}"


def test_parameters_are_never_shown() -> None:
    assert engine_for(resolve("clickhouse://host")).hide_parameters


def test_tls_options_reach_the_driver_only_with_tls(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    options = {"verify": "false", "ca_cert": str(tmp_path / "ca.pem")}
    secure = connect_arguments("clickhouse://host?secure=true", **options)
    plain = connect_arguments("clickhouse://host", **options)
    assert (secure["secure"], secure["verify"], secure["ca_cert"]) == (True, "false", options["ca_cert"])
    assert plain["secure"] is False
    assert {"verify", "ca_cert"}.isdisjoint(plain)


def test_certificates_are_checked_unless_told_otherwise() -> None:
    assert connect_arguments("clickhouse://host?secure=1")["verify"] == "true"


def test_a_folder_with_a_question_mark_is_refused_since_the_engine_would_open_another(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"que\?stion has a '\?'"):
        engine_for(resolve(f"chdb://{tmp_path}/que%3Fstion"))
