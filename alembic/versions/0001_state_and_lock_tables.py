"""State and lock tables."""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create both tables. Each statement may run again after a crash."""
    names, on_cluster, replacing = (op.get_context().opts[name] for name in ("names", "on_cluster", "replacing"))
    op.execute(
        f"""CREATE TABLE IF NOT EXISTS `{names.schema}`.`{names.table}`{on_cluster} (
    state_id String,
    partial_state Nullable(String),
    completed_state Nullable(String),
    updated_at DateTime64(6) DEFAULT now64(6),
    is_deleted UInt8 DEFAULT 0
) ENGINE = {replacing(names.table, "updated_at")}
ORDER BY state_id
SETTINGS index_granularity = 256"""
    )
    op.execute(
        f"""CREATE TABLE IF NOT EXISTS `{names.schema}`.`{names.lock_table}`{on_cluster} (
    state_id String,
    lock_id String,
    released UInt8,
    token DateTime64(6) DEFAULT now64(6),
    born DateTime64(6) DEFAULT now64(6),
    locked_at DateTime64(6) DEFAULT now64(6),
    waiting UInt8 DEFAULT 0,
    lease_seconds Float64,
    sequence UInt32,
    holder String,
    process String,
    operation String,
    version String
) ENGINE = {replacing(names.lock_table, "locked_at")}
ORDER BY (state_id, lock_id, released, token)
TTL toDateTime(locked_at) + toIntervalDay(7)
SETTINGS index_granularity = 256"""
    )


def downgrade() -> None:
    """Drop the tables, with what they hold."""
    names, on_cluster = (op.get_context().opts[name] for name in ("names", "on_cluster"))
    op.execute(f"DROP TABLE IF EXISTS `{names.schema}`.`{names.keeper_table}`{on_cluster} SYNC")
    # SYNC, or a Replicated table that is made again soon finds its place in Keeper still taken
    op.execute(f"DROP TABLE IF EXISTS `{names.schema}`.`{names.lock_table}`{on_cluster} SYNC")
    op.execute(f"DROP TABLE IF EXISTS `{names.schema}`.`{names.table}`{on_cluster} SYNC")
