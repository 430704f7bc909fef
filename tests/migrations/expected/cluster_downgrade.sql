-- Running downgrade 0002 -> 0001

DROP VIEW IF EXISTS `meltano`.`state_history_view` ON CLUSTER `prod` SYNC;

DROP TABLE IF EXISTS `meltano`.`state_history` ON CLUSTER `prod` SYNC;

ALTER TABLE `meltano`.`state` ON CLUSTER `prod`
    DROP COLUMN IF EXISTS run_id,
    DROP COLUMN IF EXISTS operation,
    DROP COLUMN IF EXISTS holder;

TRUNCATE TABLE meltano.state_alembic;

INSERT INTO `meltano`.`state_alembic` (singleton, version_num, position, applied_at) SELECT 1, '0001', 1, now64(6);

-- Running downgrade 0001 -> 

DROP TABLE IF EXISTS `meltano`.`state_keeper_lock` ON CLUSTER `prod` SYNC;

DROP TABLE IF EXISTS `meltano`.`state_lock` ON CLUSTER `prod` SYNC;

DROP TABLE IF EXISTS `meltano`.`state` ON CLUSTER `prod` SYNC;

TRUNCATE TABLE meltano.state_alembic;

