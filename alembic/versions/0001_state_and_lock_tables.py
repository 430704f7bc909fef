"""State and lock tables."""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create both tables. Each statement may run again after a crash."""
    names = op.get_context().opts["names"]
    op.execute(
        f"""CREATE TABLE IF NOT EXISTS `{names.schema}`.`{names.table}` (
    state_id String,
    partial_state Nullable(String),
    completed_state Nullable(String),
    updated_at DateTime64(6),
    is_deleted UInt8 DEFAULT 0
) ENGINE = ReplacingMergeTree(updated_at)
ORDER BY state_id
SETTINGS index_granularity = 256"""
    )
    op.execute(
        f"""CREATE TABLE IF NOT EXISTS `{names.schema}`.`{names.lock_table}` (
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
) ENGINE = ReplacingMergeTree(locked_at)
ORDER BY (state_id, lock_id, released, token)
TTL toDateTime(locked_at) + toIntervalDay(7)
SETTINGS index_granularity = 256"""
    )


def downgrade() -> None:
    """Drop both tables, with what they hold."""
    names = op.get_context().opts["names"]
    op.execute(f"DROP TABLE IF EXISTS `{names.schema}`.`{names.lock_table}`")
    op.execute(f"DROP TABLE IF EXISTS `{names.schema}`.`{names.table}`")
