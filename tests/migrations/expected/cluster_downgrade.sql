-- Running downgrade 0001 -> 

DROP TABLE IF EXISTS `meltano`.`state_keeper_lock` ON CLUSTER `prod` SYNC;

DROP TABLE IF EXISTS `meltano`.`state_lock` ON CLUSTER `prod` SYNC;

DROP TABLE IF EXISTS `meltano`.`state` ON CLUSTER `prod` SYNC;

TRUNCATE TABLE meltano.state_alembic;

