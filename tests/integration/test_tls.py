"""TLS, by a proxy before the server whose certificate a private authority signed; and a service that wakes up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trustme
from meltano.core.state_store.base import MeltanoState
from sqlalchemy import text

from meltano_ch_state import connection, retry
from meltano_ch_state.connection import engine_for
from meltano_ch_state.errors import ServerUnreachableError
from meltano_ch_state.manager import ClickhouseStateStoreManager
from meltano_ch_state.repositories.base import Repository
from meltano_ch_state.settings import resolve
from tests.rig.endpoint import Endpoint
from tests.rig.ports import HOST
from tests.support.proxy import serving
from tests.support.tls import speaking_tls

Manager = ClickhouseStateStoreManager
STATE = MeltanoState("a", {}, {"value": 1})


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_cert(authority: trustme.CA, tmp_path: Path) -> str:
    """The authority's certificate, as a file."""
    file = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(file))
    return str(file)


@pytest.fixture
def secure(server: Endpoint, authority: trustme.CA) -> Iterator[Endpoint]:
    with serving(server, speaking_tls(authority, HOST)) as (_, endpoint):
        yield endpoint


@pytest.fixture
def misnamed(server: Endpoint, authority: trustme.CA) -> Iterator[Endpoint]:
    """A server whose certificate is for somebody else."""
    with serving(server, speaking_tls(authority, "elsewhere.example")) as (_, endpoint):
        yield endpoint


def refusal(manager: Manager) -> str:
    with pytest.raises(ServerUnreachableError) as caught:
        manager.get("a")
    manager.close()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_private_authority_is_accepted_with_ca_cert(secure: Endpoint, schema: str, ca_cert: str) -> None:
    manager = Manager(secure.url(), schema=schema, secure=True, ca_cert=ca_cert)
    manager.set(STATE)
    assert manager.get("a") == STATE
    manager.close()


def test_an_unknown_authority_is_refused_in_one_line_that_names_ca_cert(secure: Endpoint, schema: str) -> None:
    line = refusal(Manager(secure.url(), schema=schema, secure=True))
    assert line.startswith(f"No answer from ClickHouse at {HOST}:{secure.http_port}: ")
    assert "unable to get local issuer certificate" in line
    assert line.endswith(
        ". Set state_backend.clickhouse.ca_cert to a PEM file with the authority that signed its certificate."
    )


def test_another_authority_is_refused_in_one_line_that_names_ca_cert(
    secure: Endpoint, schema: str, tmp_path: Path
) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    line = refusal(Manager(secure.url(), schema=schema, secure=True, ca_cert=str(tmp_path / "other.pem")))
    assert "Set state_backend.clickhouse.ca_cert to a PEM file" in line


def test_a_wrong_host_name_is_refused_in_one_line_that_names_the_host(
    misnamed: Endpoint, schema: str, ca_cert: str
) -> None:
    line = refusal(Manager(misnamed.url(), schema=schema, secure=True, ca_cert=ca_cert))
    assert f"certificate is not valid for '{HOST}'" in line
    assert line.endswith(". Set state_backend.clickhouse.host to a name that its certificate is for.")


def test_without_verify_any_certificate_will_do(misnamed: Endpoint, schema: str) -> None:
    manager = Manager(misnamed.url(), schema=schema, secure=True, verify=False)
    manager.set(STATE)
    assert manager.get("a") == STATE
    manager.close()


def test_a_server_that_speaks_tls_only_is_one_line_to_a_client_that_does_not(secure: Endpoint, schema: str) -> None:
    assert "Check state_backend.clickhouse.host, port and secure" in refusal(Manager(secure.url(), schema=schema))


def test_a_file_without_a_certificate_is_one_line(secure: Endpoint, schema: str, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").touch()
    line = refusal(Manager(secure.url(), schema=schema, secure=True, ca_cert=str(tmp_path / "empty.pem")))
    assert "Set state_backend.clickhouse.ca_cert to a PEM file" in line


@pytest.mark.parametrize(("secure", "port"), [("true", 8443), ("false", 8123)])
def test_the_port_follows_from_tls(secure: str, port: int) -> None:
    assert resolve(f"clickhouse://db?secure={secure}").port == port


def test_the_first_connect_waits_for_a_service_that_wakes_up(
    server: Endpoint, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "ANSWER_TIMEOUT_SECONDS", 1)
    with serving(server) as (proxy, endpoint):
        proxy.wakes_up_after_seconds = 2.0
        manager = Manager(endpoint.url(), schema=schema)
        assert manager.get("a") is None
        manager.close()


def test_a_service_that_does_not_wake_up_in_time_is_one_line(
    server: Endpoint, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "WAKE_UP_TIMEOUT_SECONDS", 1)
    with serving(server) as (proxy, endpoint):
        proxy.wakes_up_after_seconds = 2.5
        assert "timed out" in refusal(Manager(endpoint.url(), schema=schema))


@pytest.mark.parametrize("reconnects", [False, True], ids=["on the same connection", "on a new one"])
def test_once_it_has_answered_nobody_is_patient_any_more(
    server: Endpoint, monkeypatch: pytest.MonkeyPatch, reconnects: bool
) -> None:
    monkeypatch.setattr(connection, "ANSWER_TIMEOUT_SECONDS", 1)
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.0)  # the next try would find it awake
    with serving(server) as (proxy, endpoint):
        engine = engine_for(resolve(endpoint.url()))
        with ExitStack() as stack:
            stack.callback(engine.dispose)  # whatever happens: the proxy waits for its clients
            repository = Repository(engine)
            repository.select(text("SELECT 1"))
            if reconnects:
                engine.dispose()
            proxy.wakes_up_after_seconds = 2.5
            with pytest.raises(ServerUnreachableError, match="timed out"):
                repository.select(text("SELECT 1"))
