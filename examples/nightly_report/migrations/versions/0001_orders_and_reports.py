"""Orders and reports."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create both tables."""
    op.create_table(
        "orders", sa.Column("id", sa.Integer, primary_key=True), sa.Column("amount", sa.Integer, nullable=False)
    )
    op.create_table(
        "reports",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("last_order", sa.Integer, nullable=False),
        sa.Column("total", sa.Integer, nullable=False),
    )


def downgrade() -> None:
    """Drop both tables."""
    op.drop_table("reports")
    op.drop_table("orders")
