"""How the rig finds a program for a server, and what it does without one. The tests start no server."""

import base64
import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig import binary
from tests.rig.binary import Package, binary_on_path, cache_folder, cached_library, fetch, find_program
from tests.rig.endpoint import Endpoint
from tests.rig.ports import free_ports, is_free
from tests.rig.server import shared_server

LIBRARY = b"the library's bytes"


@pytest.fixture
def tarball(tmp_path: Path) -> Path:
    """A tarball laid out as the npm package."""
    path = tmp_path / "packed.tgz"
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("package/libchdb.so")
        member.size = len(LIBRARY)
        archive.addfile(member, io.BytesIO(LIBRARY))
    return path


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def script(folder: Path, name: str, body: str) -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)


def integrity_of(tarball: Path) -> str:
    return "sha512-" + base64.b64encode(hashlib.sha512(tarball.read_bytes()).digest()).decode()


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_package_with_the_pinned_hash_is_put_into_the_cache(tarball: Path, programs: Path, tmp_path: Path) -> None:
    script(programs, "npm", f"/bin/cp {tarball} .")
    library = tmp_path / "cache" / "libchdb.so"
    fetch(Package("name", "1", integrity_of(tarball)), library)
    assert library.read_bytes() == LIBRARY
    assert files_below(library.parent) == [library]


def test_a_package_with_another_hash_is_refused_and_not_kept(tarball: Path, programs: Path, tmp_path: Path) -> None:
    script(programs, "npm", f"/bin/cp {tarball} .")
    library = tmp_path / "cache" / "libchdb.so"
    with pytest.raises(RuntimeError, match=r"packed\.tgz has the hash sha512-.*, but sha512-other is pinned: refused"):
        fetch(Package("name", "1", "sha512-other"), library)
    assert files_below(library.parent) == []


def test_a_library_in_the_cache_is_not_fetched_again(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binary, "PACKAGES", dict.fromkeys([binary.this_system()], Package("@a/b", "1", "sha512-x")))
    library = tmp_path / "@a-b" / "1" / "libchdb.so"
    library.parent.mkdir(parents=True)
    library.touch()
    assert cached_library(tmp_path) == library


def test_the_cache_folder_can_be_named_and_is_otherwise_in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLICKHOUSE_TEST_CACHE", "/elsewhere")
    assert cache_folder() == Path("/elsewhere")
    monkeypatch.delenv("CLICKHOUSE_TEST_CACHE")
    assert cache_folder() == Path(__file__).parents[2] / ".clickhouse"


def test_a_recent_clickhouse_on_the_path_is_found_first(programs: Path) -> None:
    script(programs, "clickhouse", "echo 26.7.2.1")
    assert find_program() == programs / "clickhouse"


@pytest.mark.parametrize("body", ["echo 18.16.1", "exit 1"])
def test_a_clickhouse_that_is_too_old_or_does_not_run_is_passed_over(programs: Path, body: str) -> None:
    script(programs, "clickhouse", body)
    assert binary_on_path() is None


REMEDIES = r"(?s)No ClickHouse server can be had.*CLICKHOUSE_TEST_URL=.*on the PATH.*install npm.*tried last: "


def test_without_any_program_the_error_names_the_remedies(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLICKHOUSE_TEST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(binary, "PACKAGES", dict.fromkeys([binary.this_system()], Package("@a/b", "1", "sha512-x")))
    with pytest.raises(RuntimeError, match=REMEDIES + "npm pack @a/b@1 --ignore-scripts: .*No such file"):
        find_program()


def test_a_failing_npm_is_quoted(programs: Path, tmp_path: Path) -> None:
    script(programs, "npm", "echo no such package >&2; exit 1")
    with pytest.raises(RuntimeError, match=REMEDIES + "npm pack .*: no such package"):
        fetch(Package("name", "1", "sha512-x"), tmp_path / "cache" / "libchdb.so")


def test_a_platform_without_a_pinned_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binary, "PACKAGES", {})
    with pytest.raises(RuntimeError, match=REMEDIES + "no npm package is pinned for "):
        cached_library(tmp_path)


def test_a_server_named_by_url_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLICKHOUSE_TEST_URL", f"http://127.0.0.1:{free_ports(1)[0]}")
    with pytest.raises(RuntimeError, match=r"nothing answers at 127\.0\.0\.1:"), shared_server():
        pass


def test_an_endpoint_comes_back_from_its_url() -> None:
    endpoint = Endpoint("localhost", 8124, 9001)
    assert endpoint.http_url == "http://admin:p%40ss%3Aw%2Frd%2521@localhost:8124/?tcp_port=9001"
    assert vars(Endpoint.from_url(endpoint.http_url)) == vars(endpoint)


def test_a_url_may_leave_out_user_password_and_ports() -> None:
    endpoint = Endpoint.from_url("http://localhost")
    assert (endpoint.http_port, endpoint.tcp_port) == (8123, 9000)
    assert (endpoint.users["admin"].name, endpoint.users["admin"].password) == ("default", "")


def test_free_ports_differ_and_can_be_listened_on() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(map(is_free, ports))


@pytest.fixture(scope="module")
def a_developers_settings() -> Iterator[None]:
    """Set before the first test, as in the developer's shell: fixtures of wider scope come first."""
    with pytest.MonkeyPatch.context() as shell:
        for name in ("CLICKHOUSE_HOST", "MELTANO_STATE_BACKEND_URI", "CLICKHOUSE_TEST_OPTION"):
            shell.setenv(name, "theirs")
        yield


@pytest.mark.usefixtures("a_developers_settings")
def test_the_developers_settings_and_home_do_not_reach_a_test(tmp_path_factory: pytest.TempPathFactory) -> None:
    assert not {"CLICKHOUSE_HOST", "MELTANO_STATE_BACKEND_URI"} & set(os.environ)
    assert os.environ["CLICKHOUSE_TEST_OPTION"] == "theirs"
    assert Path.home().is_relative_to(tmp_path_factory.getbasetemp())
