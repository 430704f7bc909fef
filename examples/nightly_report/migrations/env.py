"""The project's own Alembic environment: it upgrades its own tables, then has ours made in ClickHouse."""

import os

from alembic import context
from models import Base
from sqlalchemy import create_engine

from meltano_ch_state import upgrade

engine = create_engine(os.environ["REPORT_DATABASE"])
with engine.connect() as connection:
    context.configure(connection=connection, target_metadata=Base.metadata)
    with context.begin_transaction():
        context.run_migrations()
if context.config.cmd_opts is not None and context.config.cmd_opts.cmd[0].__name__ == "upgrade":
    upgrade(create_engine(os.environ["REPORT_CLICKHOUSE"], hide_parameters=True), schema="report")
