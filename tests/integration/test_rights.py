"""The grants of docs/rights.md are enough, and each is needed: its absence is one line that names it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from click import ClickException
from click.testing import CliRunner
from meltano.core.state_store.base import MeltanoState

from meltano_ch_state.cli import main
from meltano_ch_state.cli.target import target_of
from meltano_ch_state.connection import engine_for
from meltano_ch_state.errors import PermissionDeniedError, StateBackendError
from meltano_ch_state.manager import ClickhouseStateStoreManager
from meltano_ch_state.migrate import downgrade
from meltano_ch_state.protocol import StateRow
from meltano_ch_state.pruning import Pruner
from meltano_ch_state.settings import resolve
from tests.rig.server import ClickHouseServer
from tests.rig.users import DOCUMENTED, DOCUMENTED_USERS, USERS, User

Manager = ClickhouseStateStoreManager
STATE = MeltanoState("a", {"p": 1}, {"value": 1})
LESS = [user for user in DOCUMENTED if "_without_" in user.name]


@pytest.fixture
def own(private_server: ClickHouseServer) -> ClickHouseServer:
    """A server of the test's own: the page's grants are on the schema `meltano`, which tests would share."""
    return private_server


@pytest.fixture
def migrated(own: ClickHouseServer) -> Iterator[ClickHouseServer]:
    """The same, with tables and a state."""
    manager = Manager(own.url())
    manager.set(STATE)
    yield own
    manager.close()


def migrate(server: ClickHouseServer, user: str, **settings: str) -> None:
    manager = Manager(server.url(user), **settings)
    manager.migrate()
    manager.migrate()
    manager.close()


def migrate_keeper(server: ClickHouseServer, user: str) -> None:
    migrate(server, user, lock_mode="keeper")


def go_back(server: ClickHouseServer, user: str) -> None:
    engine = engine_for(resolve(server.url(user)))
    downgrade(engine)
    engine.dispose()


def run_keeper(server: ClickHouseServer, user: str) -> None:
    run(server, user, "keeper")


def run(server: ClickHouseServer, user: str, lock_mode: str = "insert") -> None:
    """What a run does, and the commands of an operator."""
    manager = Manager(server.url(user), lock_mode=lock_mode)
    manager.update(MeltanoState("b", {}, {"value": 2}))
    manager.set(STATE)
    assert manager.get("a") == STATE
    assert manager.get_state_ids() == ["a", "b"]
    manager.clear("b")
    assert manager.set_all([STATE, MeltanoState("c", {}, {})]) == 2
    with manager.acquire_lock("c"):
        (lock,) = json.loads(command(server, user, "locks", "--json"))
        assert "Ended" in command(server, user, "unlock", "c", "--lock-id", lock["lock_id"], "--yes")
    assert manager.clear_all() == 2
    manager.close()


def undo(server: ClickHouseServer, user: str) -> None:
    """Look at the versions of a state, and bring one back."""
    admin = Manager(server.url())
    admin.set(MeltanoState("a", {}, {"value": 9}))
    admin.close()
    first = json.loads(command(server, user, "history", "a", "--json"))[-1]["version"]
    assert "value" in command(server, user, "diff", "a")
    assert "Restored" in command(server, user, "restore", "a", "--version", str(first), "--yes")


def command(server: ClickHouseServer, user: str, *arguments: str) -> str:
    result = CliRunner().invoke(main, [*arguments, "--uri", server.url(user)], standalone_mode=False)
    if isinstance(result.exception, ClickException) and result.exception.__cause__:
        raise result.exception.__cause__
    assert result.exit_code == 0, result.output
    return result.output


def read(server: ClickHouseServer, user: str) -> None:
    manager = Manager(server.url(user))
    assert manager.get("a") == STATE
    assert manager.get("b") is None
    assert manager.get_state_ids("a*") == ["a"]
    assert list(manager.get_all()) == [STATE]
    manager.close()


def prune(server: ClickHouseServer, user: str) -> None:
    """All kinds of rubbish go."""
    admin = target_of(resolve(server.url()))
    admin.states.insert_versions([StateRow("old", None, "{}", 1), StateRow("cleared", None, None, 1, is_deleted=True)])
    target = target_of(resolve(server.url(user)))
    pruner = Pruner(target.states, target.locks, target.maintenance)
    assert target.schema.readable()
    assert pruner.clear(pruner.old_states(86_400), 86_400) == (["old"], None)
    assert pruner.erase(pruner.old_tombstones()) == (["cleared"], None)
    target.maintenance.merge_locks()
    cutoff = target.locks.now()
    assert target.history.count_older(cutoff)
    target.history.erase_older(cutoff)
    for each in (admin, target):
        each.engine.dispose()


TASKS: dict[str, Callable[[ClickHouseServer, str], None]] = dict(
    zip(DOCUMENTED_USERS, (migrate, go_back, run, undo, read, prune, run_keeper, migrate_keeper), strict=True)
)


def lacking(user: User) -> tuple[str, str]:
    """Whose rights a user has, and which one is missing."""
    whole = USERS[user.name.split("_without_")[0]]
    (missing,) = set(whole.grants or ()) - set(user.grants or ())
    return whole.name, missing


def test_the_page_has_grants_for_every_purpose() -> None:
    assert all(USERS[name].grants for name in DOCUMENTED_USERS)


def test_its_grants_are_enough_to_migrate(own: ClickHouseServer) -> None:
    migrate(own, "meltano_migrate")
    assert own.execute("SELECT count() FROM system.tables WHERE database = 'meltano'") == "5"


def test_its_grants_are_enough_to_go_back(migrated: ClickHouseServer) -> None:
    go_back(migrated, "meltano_downgrade")
    assert migrated.execute("SELECT name FROM system.tables WHERE database = 'meltano'") == "state_alembic"


def test_its_grants_are_enough_to_run(migrated: ClickHouseServer) -> None:
    run(migrated, "meltano_run")


def test_its_grants_are_enough_to_undo(migrated: ClickHouseServer) -> None:
    undo(migrated, "meltano_restore")
    assert Manager(migrated.url()).get("a") == STATE


def test_its_grants_are_enough_to_lock_in_keeper(own: ClickHouseServer) -> None:
    migrate_keeper(own, "meltano_migrate_keeper")
    assert own.execute("SELECT count() FROM system.tables WHERE database = 'meltano'") == "6"
    Manager(own.url(), lock_mode="keeper").set(STATE)
    run_keeper(own, "meltano_keeper")


def test_its_grants_are_enough_to_read(migrated: ClickHouseServer) -> None:
    read(migrated, "meltano_read")


def test_its_grants_are_enough_to_prune(migrated: ClickHouseServer) -> None:
    prune(migrated, "meltano_prune")


@pytest.mark.parametrize("user", LESS, ids=lambda user: f"{lacking(user)[0]}: {lacking(user)[1]}")
def test_without_one_grant_the_error_names_it(own: ClickHouseServer, user: User) -> None:
    task, missing = lacking(user)
    if "migrate" not in task:
        Manager(
            own.url(), lock_mode="insert" if task in {"meltano_run", "meltano_read", "meltano_restore"} else "keeper"
        ).set(STATE)

    with pytest.raises(StateBackendError) as caught:
        TASKS[task](own, user.name)

    assert isinstance(caught.value, PermissionDeniedError)
    privilege, _, target = missing.removeprefix("GRANT ").partition(" ON ")
    line = str(caught.value)
    assert "\n" not in line
    assert f"Have an administrator run: GRANT {privilege}" in line
    assert f" ON {target.removesuffix('.*')}" in line


def test_a_user_who_may_only_read_is_told_so_when_it_writes(migrated: ClickHouseServer) -> None:
    with pytest.raises(PermissionDeniedError):
        Manager(migrated.url("meltano_read")).set(STATE)


def test_a_view_whose_definer_may_not_write_the_history_keeps_no_state_from_being_written(
    migrated: ClickHouseServer,
) -> None:
    view = "meltano.state_history_view"
    definition = migrated.execute(f"SHOW CREATE TABLE {view} FORMAT TSVRaw")
    migrated.execute(f"DROP VIEW {view} SYNC")
    migrated.execute(definition.replace("\nAS ", "\nDEFINER = meltano_run SQL SECURITY DEFINER\nAS ", 1))
    before = migrated.execute("SELECT count() FROM meltano.state_history")

    manager = Manager(migrated.url("meltano_run"))
    manager.set(MeltanoState("b", {}, {"value": 2}))

    assert manager.get("b") == MeltanoState("b", {}, {"value": 2})
    assert migrated.execute("SELECT count() FROM meltano.state_history") == before
    manager.close()
