"""What this package keeps out of logs."""

from __future__ import annotations

import logging


def quiet_drivers() -> None:
    """Have the drivers not warn of what is raised right after as an error of ours, in one line."""
    logging.getLogger("clickhouse_connect").setLevel(logging.ERROR)
    requests = logging.getLogger("urllib3.connectionpool")
    if not requests.filters:
        requests.addFilter(lambda record: ": /?" not in record.getMessage())  # requests to ClickHouse are for `/?...`
