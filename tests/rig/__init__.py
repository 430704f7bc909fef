"""The test rig: a real ClickHouse server for the tests, started without Docker and without root rights."""
