"""Adds up the orders that are new since the last report. Only one process at a time does it; others come back later."""

from __future__ import annotations

import os
import sys

from models import Order, Report
from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import Session

from meltano_ch_state import open_store
from meltano_ch_state.errors import StateLockedError
from meltano_ch_state.store import State, StateStore

JOB = "report:nightly"


def main() -> int:
    """Run the job; 75 (EX_TEMPFAIL) when another process is at it."""
    engine = create_engine(os.environ["REPORT_DATABASE"])
    store = open_store(create_engine(os.environ["REPORT_CLICKHOUSE"], hide_parameters=True), schema="report")
    try:
        with store.lock(JOB, "nightly report", timeout_seconds=1.0), Session(engine) as session:
            sys.stdout.write(report(store, session) + "\n")
    except StateLockedError as error:
        sys.stderr.write(f"{error}\n")
        return 75
    return 0


def report(store: StateStore, session: Session) -> str:
    """Write the report, then the bookmark; a job that dies in between is caught by the report that is there already."""
    state = store.get(JOB)
    done = state.completed_state["last_order"] if state else 0
    done = max(done, session.scalar(select(func.max(Report.last_order))) or 0)
    total, last = session.execute(select(func.sum(Order.amount), func.max(Order.id)).where(Order.id > done)).one()
    if last is None:
        return "nothing new"
    session.add(Report(last_order=last, total=total))
    session.commit()
    store.set(State(JOB, {}, {"last_order": last}))
    return f"orders {done + 1} to {last}: {total}"


if __name__ == "__main__":
    sys.exit(main())
