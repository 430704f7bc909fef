"""What states in ClickHouse cost, next to the bare statements and to other stores: `python -m benchmarks --help`."""
