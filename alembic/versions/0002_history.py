"""Every version of every state, with its writer."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

VERSION = "state_id, partial_state, completed_state, updated_at, is_deleted, holder, operation, run_id"


def upgrade() -> None:
    """Have a materialized view keep each version that is written. Each statement may run again after a crash."""
    options = op.get_context().opts
    names, on_cluster, replacing = (options[name] for name in ("names", "on_cluster", "replacing"))
    op.execute(
        f"""ALTER TABLE `{names.schema}`.`{names.table}`{on_cluster}
    ADD COLUMN IF NOT EXISTS holder String,
    ADD COLUMN IF NOT EXISTS operation String,
    ADD COLUMN IF NOT EXISTS run_id String"""
    )
    op.execute(
        f"""CREATE TABLE IF NOT EXISTS `{names.schema}`.`{names.history_table}`{on_cluster} (
    state_id String,
    partial_state Nullable(String),
    completed_state Nullable(String),
    updated_at DateTime64(6),
    is_deleted UInt8,
    holder String,
    operation String,
    run_id String,
    written_at DateTime64(6) DEFAULT now64(6)
) ENGINE = {replacing(names.history_table, "written_at")}
ORDER BY (state_id, updated_at)
TTL toDateTime(written_at) + toIntervalDay({options["history_days"]})
SETTINGS index_granularity = 256"""
    )
    op.execute(
        f"""CREATE MATERIALIZED VIEW IF NOT EXISTS `{names.schema}`.`{names.history_view}`{on_cluster}
TO `{names.schema}`.`{names.history_table}`
AS SELECT {VERSION}
FROM `{names.schema}`.`{names.table}`"""  # noqa: S608 - names are checked when they are set
    )
    # after the view, so that none is missed; one that is copied twice stays once
    op.execute(
        f"INSERT INTO `{names.schema}`.`{names.history_table}` ({VERSION})\n"
        f"SELECT {VERSION}\nFROM `{names.schema}`.`{names.table}` FINAL"
    )


def downgrade() -> None:
    """Drop the history. First the view, or every write of a state would fail for want of its table."""
    names, on_cluster = (op.get_context().opts[name] for name in ("names", "on_cluster"))
    op.execute(f"DROP VIEW IF EXISTS `{names.schema}`.`{names.history_view}`{on_cluster} SYNC")
    op.execute(f"DROP TABLE IF EXISTS `{names.schema}`.`{names.history_table}`{on_cluster} SYNC")
    op.execute(
        f"""ALTER TABLE `{names.schema}`.`{names.table}`{on_cluster}
    DROP COLUMN IF EXISTS run_id,
    DROP COLUMN IF EXISTS operation,
    DROP COLUMN IF EXISTS holder"""
    )
