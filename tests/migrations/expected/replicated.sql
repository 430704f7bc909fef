CREATE DATABASE IF NOT EXISTS `meltano`;

CREATE TABLE IF NOT EXISTS meltano.state_alembic (
    singleton UInt8, 
    version_num String, 
    position UInt32, 
    applied_at DateTime64(6)
) ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/meltano_ch_state/meltano/state_alembic', '{shard}-{replica}', position)
 ORDER BY singleton;

-- Running upgrade  -> 0001

CREATE TABLE IF NOT EXISTS `meltano`.`state` (
    state_id String,
    partial_state Nullable(String),
    completed_state Nullable(String),
    updated_at DateTime64(6) DEFAULT now64(6),
    is_deleted UInt8 DEFAULT 0
) ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/meltano_ch_state/meltano/state', '{shard}-{replica}', updated_at)
ORDER BY state_id
SETTINGS index_granularity = 256;

CREATE TABLE IF NOT EXISTS `meltano`.`state_lock` (
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
) ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/meltano_ch_state/meltano/state_lock', '{shard}-{replica}', locked_at)
ORDER BY (state_id, lock_id, released, token)
TTL toDateTime(locked_at) + toIntervalDay(7)
SETTINGS index_granularity = 256;

INSERT INTO `meltano`.`state_alembic` (singleton, version_num, position, applied_at) SELECT 1, '0001', 1, now64(6);

-- Running upgrade 0001 -> 0002

ALTER TABLE `meltano`.`state`
    ADD COLUMN IF NOT EXISTS holder String,
    ADD COLUMN IF NOT EXISTS operation String,
    ADD COLUMN IF NOT EXISTS run_id String;

CREATE TABLE IF NOT EXISTS `meltano`.`state_history` (
    state_id String,
    partial_state Nullable(String),
    completed_state Nullable(String),
    updated_at DateTime64(6),
    is_deleted UInt8,
    holder String,
    operation String,
    run_id String,
    written_at DateTime64(6) DEFAULT now64(6)
) ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/meltano_ch_state/meltano/state_history', '{shard}-{replica}', written_at)
ORDER BY (state_id, updated_at)
TTL toDateTime(written_at) + toIntervalDay(90)
SETTINGS index_granularity = 256;

CREATE MATERIALIZED VIEW IF NOT EXISTS `meltano`.`state_history_view`
TO `meltano`.`state_history`
AS SELECT state_id, partial_state, completed_state, updated_at, is_deleted, holder, operation, run_id
FROM `meltano`.`state`;

INSERT INTO `meltano`.`state_history` (state_id, partial_state, completed_state, updated_at, is_deleted, holder, operation, run_id)
SELECT state_id, partial_state, completed_state, updated_at, is_deleted, holder, operation, run_id
FROM `meltano`.`state` FINAL;

INSERT INTO `meltano`.`state_alembic` (singleton, version_num, position, applied_at) SELECT 1, '0002', 2, now64(6);

