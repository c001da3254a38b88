BEGIN TRANSACTION;
CREATE TABLE alkstore_counters(
 name text primary key,
 last integer not null
) strict, without rowid;
INSERT INTO "alkstore_counters" VALUES('job',27);
INSERT INTO "alkstore_counters" VALUES('pruned',0);
INSERT INTO "alkstore_counters" VALUES('prunings',0);
INSERT INTO "alkstore_counters" VALUES('token',5);
CREATE TABLE alkstore_events(
 stream text not null,
 "offset" integer not null,
 key text,
 body text not null,
 created_at real not null,
 primary key (stream, "offset")
) strict, without rowid;
INSERT INTO "alkstore_events" VALUES('orders',1,NULL,'{"note":"one"}',1700000001.0);
INSERT INTO "alkstore_events" VALUES('orders',2,NULL,'{"note":"two"}',1700000001.0);
INSERT INTO "alkstore_events" VALUES('orders',3,'customer-7','{"note":"three"}',1700000001.25);
INSERT INTO "alkstore_events" VALUES('orders',4,'it''s é💡','{"note":"odd","é💡\u0000":["it''s","a \"b\" \\ 100% %s $1"," ",1180591620717411303424,-0.0,0.1,1e+300,null,true,{},[]]}',1700000001.25);
INSERT INTO "alkstore_events" VALUES('trimmed',5,NULL,'4',1700000001.25);
INSERT INTO "alkstore_events" VALUES('trimmed',6,NULL,'5',1700000001.25);
CREATE TABLE alkstore_jobs(
 id integer primary key,
 queue text not null,
 body text not null,
 state integer not null,
 lane integer not null,
 due real not null,
 priority integer not null,
 run_at real not null,
 expires_at real,
 attempts integer not null default 0,
 max_attempts integer not null,
 visibility_timeout real not null,
 base_backoff real not null,
 dead_retention real,
 worker_id text,
 claim_expires_at real,
 token integer not null default 0,
 created_at real not null,
 last_error text,
 died_at real
) strict;
INSERT INTO "alkstore_jobs" VALUES(1,'mail','{"note":"spent and buried"}',2,3,1700000000.5,0,1700000000.0,NULL,1,1,0.5,0.0,1000000000.0,'worker-1',1700000000.5,1,1700000000.0,'max attempts exceeded',1700000001.0);
INSERT INTO "alkstore_jobs" VALUES(2,'mail','{"note":"expired and buried"}',2,3,1700000000.0,0,1700000000.0,1700000000.5,0,4,60.5,2.25,3600.125,NULL,NULL,0,1700000000.0,'expired',1700000001.0);
INSERT INTO "alkstore_jobs" VALUES(3,'mail','{"note":"live"}',1,0,1700100001.0,0,1700000001.0,NULL,1,4,60.5,2.25,3600.125,'worker-1',1700100001.0,1,1700000001.0,NULL,NULL);
INSERT INTO "alkstore_jobs" VALUES(4,'mail','{"note":"claimed twice"}',1,0,1700100001.0,3,1700000001.0,NULL,1,3,300.0,5.0,NULL,'worker-2 é',1700100001.0,2,1700000001.0,NULL,NULL);
INSERT INTO "alkstore_jobs" VALUES(5,'mail','{"note":"lapsed"}',1,0,1700000001.5,7,1700000001.0,NULL,1,2,0.5,0.0,1000000000.0,'worker-3',1700000001.5,1,1700000001.0,NULL,NULL);
INSERT INTO "alkstore_jobs" VALUES(6,'mail','{"note":"spent"}',1,0,1700000001.5,0,1700000001.0,NULL,1,1,0.5,0.0,1000000000.0,'worker-3',1700000001.5,1,1700000001.0,NULL,NULL);
INSERT INTO "alkstore_jobs" VALUES(7,'mail','{"note":"failed"}',2,3,1700000061.5,0,1700000001.0,NULL,1,4,60.5,2.25,3600.125,'worker-1',1700000061.5,1,1700000001.0,'ValueError: it''s "broken" é💡
100% \ of it',1700000001.0);
INSERT INTO "alkstore_jobs" VALUES(8,'mail','{"note":"exhausted"}',2,3,1700000301.0,0,1700000001.0,NULL,1,1,300.0,5.0,NULL,'worker-1',1700000301.0,1,1700000001.0,'TimeoutError: slow',1700000001.0);
INSERT INTO "alkstore_jobs" VALUES(9,'mail','{"note":"revived"}',0,1,1700000001.0,0,1700000001.0,NULL,0,4,60.5,2.25,3600.125,NULL,NULL,1,1700000001.0,NULL,NULL);
INSERT INTO "alkstore_jobs" VALUES(10,'mail','{"note":"retried"}',0,0,1700000001.25,0,1700000001.25,NULL,1,4,60.5,2.25,3600.125,NULL,NULL,1,1700000001.0,'ValueError: not yet',NULL);
INSERT INTO "alkstore_jobs" VALUES(11,'mail','{"note":"retried later"}',0,0,1700005001.5,0,1700005001.5,NULL,1,3,300.0,5.0,NULL,NULL,NULL,1,1700000001.0,'ValueError: later',NULL);
INSERT INTO "alkstore_jobs" VALUES(12,'mail','{"note":"released"}',0,0,1700005001.0,0,1700005001.0,NULL,0,3,300.0,5.0,NULL,NULL,NULL,1,1700000001.0,NULL,NULL);
INSERT INTO "alkstore_jobs" VALUES(14,'mail','{"note":"plain"}',0,1,1700000001.0,0,1700000001.0,NULL,0,3,300.0,5.0,NULL,NULL,NULL,0,1700000001.0,NULL,NULL);
INSERT INTO "alkstore_jobs" VALUES(15,'mail','{"note":"least urgent"}',0,1,1700000001.0,-9223372036854775808,1700000001.0,NULL,0,4,60.5,2.25,3600.125,NULL,NULL,0,1700000001.0,NULL,NULL);
INSERT INTO "alkstore_jobs" VALUES(16,'mail','{"note":"most urgent"}',0,1,1700000001.0,9223372036854775807,1700000001.0,NULL,0,4,60.5,2.25,3600.125,NULL,NULL,0,1700000001.0,NULL,NULL);
INSERT INTO "alkstore_jobs" VALUES(17,'mail','{"note":"urgent"}',0,1,1700000001.0,10,1700000001.0,NULL,0,3,300.0,5.0,NULL,NULL,NULL,0,1700000001.0,NULL,NULL);
INSERT INTO "alkstore_jobs" VALUES(18,'mail','{"note":"delayed"}',0,0,1700003601.25,0,1700003601.25,NULL,0,4,60.5,2.25,3600.125,NULL,NULL,0,1700000001.0,NULL,NULL);
INSERT INTO "alkstore_jobs" VALUES(19,'mail','{"note":"due in the past"}',0,1,1699999899.5,0,1699999899.5,NULL,0,3,300.0,5.0,NULL,NULL,NULL,0,1700000001.0,NULL,NULL);
INSERT INTO "alkstore_jobs" VALUES(20,'mail','{"note":"due in the far future"}',0,0,1.0e+300,0,1.0e+300,NULL,0,3,300.0,5.0,NULL,NULL,NULL,0,1700000001.0,NULL,NULL);
INSERT INTO "alkstore_jobs" VALUES(21,'mail','{"note":"expiring"}',0,1,1700000001.0,0,1700000001.0,1700007201.5,0,4,60.5,2.25,3600.125,NULL,NULL,0,1700000001.0,NULL,NULL);
INSERT INTO "alkstore_jobs" VALUES(22,'mail','{"note":"expired"}',0,1,1700000001.0,20,1700000001.0,1700000001.125,0,4,60.5,2.25,3600.125,NULL,NULL,0,1700000001.0,NULL,NULL);
INSERT INTO "alkstore_jobs" VALUES(23,'mail','{"note":"odd","é💡\u0000":["it''s","a \"b\" \\ 100% %s $1"," ",1180591620717411303424,-0.0,0.1,1e+300,null,true,{},[]]}',0,1,1700000001.0,0,1700000001.0,NULL,0,3,300.0,5.0,NULL,NULL,NULL,0,1700000001.0,NULL,NULL);
INSERT INTO "alkstore_jobs" VALUES(24,'it''s 100% "odd" é💡','null',0,1,1700000001.0,0,1700000001.0,NULL,0,3,300.0,5.0,NULL,NULL,NULL,0,1700000001.0,NULL,NULL);
INSERT INTO "alkstore_jobs" VALUES(25,'__alkstore_outbox:webhooks','{"note":"refused"}',2,3,1700000061.0,0,1700000001.0,NULL,1,5,60.0,5.0,NULL,'courier',1700000061.0,1,1700000001.0,'410 Gone',1700000001.0);
INSERT INTO "alkstore_jobs" VALUES(26,'__alkstore_outbox:webhooks','{"note":"hook"}',0,1,1700000001.0,1,1700000001.0,NULL,0,5,60.0,5.0,NULL,NULL,NULL,0,1700000001.0,NULL,NULL);
INSERT INTO "alkstore_jobs" VALUES(27,'__alkstore_outbox:webhooks','{"note":"later"}',0,0,1700100001.0,0,1700100001.0,NULL,0,5,60.0,5.0,NULL,NULL,NULL,0,1700000001.0,NULL,NULL);
CREATE TABLE alkstore_locks(
 name text primary key,
 owner text not null,
 token integer not null,
 expires_at real not null
) strict, without rowid;
INSERT INTO "alkstore_locks" VALUES('held','replica-1',1,1701000001.25);
INSERT INTO "alkstore_locks" VALUES('lapsed','replica-2',2,1700000002.25);
INSERT INTO "alkstore_locks" VALUES('taken over','replica-2',5,1701000151.25);
CREATE TABLE alkstore_offsets(
 stream text not null,
 consumer text not null,
 "offset" integer not null,
 primary key (stream, consumer)
) strict, without rowid;
INSERT INTO "alkstore_offsets" VALUES('emptied','c',2);
INSERT INTO "alkstore_offsets" VALUES('only saved','c',9223372036854775807);
INSERT INTO "alkstore_offsets" VALUES('orders','billing',3);
INSERT INTO "alkstore_offsets" VALUES('orders','it''s é💡',4);
CREATE TABLE alkstore_schedules(
 name text primary key,
 spec text not null,
 interval real not null,
 queue text not null,
 body text not null,
 priority integer not null,
 expires real,
 max_attempts integer,
 next_at real not null
) strict, without rowid;
INSERT INTO "alkstore_schedules" VALUES('minutely','	@every  60s ',60.0,'ticks','{"note":"odd","é💡\u0000":["it''s","a \"b\" \\ 100% %s $1"," ",1180591620717411303424,-0.0,0.1,1e+300,null,true,{},[]]}',0,NULL,NULL,1700000061.25);
INSERT INTO "alkstore_schedules" VALUES('nightly','@every 1d',86400.0,'reports','{"note":"nightly"}',5,3600.5,7,1700086401.25);
CREATE TABLE alkstore_schema(
 version integer not null
) strict;
INSERT INTO "alkstore_schema" VALUES(1);
CREATE TABLE alkstore_streams(
 stream text primary key,
 last integer not null
) strict, without rowid;
INSERT INTO "alkstore_streams" VALUES('emptied',3);
INSERT INTO "alkstore_streams" VALUES('orders',4);
INSERT INTO "alkstore_streams" VALUES('trimmed',6);
CREATE TABLE alkstore_wakes(
 channel text not null,
 origin integer not null,
 seq integer not null,
 woken_at real not null,
 primary key (channel, origin)
) strict, without rowid;
INSERT INTO "alkstore_wakes" VALUES('__alkstore_queue_wake:__alkstore_outbox:webhooks',7458524209750975687,35,1.79601639349399709697e+09);
INSERT INTO "alkstore_wakes" VALUES('__alkstore_queue_wake:it''s 100% "odd" é💡',7458524209750975687,32,1.79601639349247622487e+09);
INSERT INTO "alkstore_wakes" VALUES('__alkstore_queue_wake:mail',7458524209750975687,31,1.79601639349216890334e+09);
INSERT INTO "alkstore_wakes" VALUES('__alkstore_schedule_wake',7458524209750975687,42,1.7960163934987413883e+09);
INSERT INTO "alkstore_wakes" VALUES('__alkstore_stream_wake:emptied',7458524209750975687,40,1.7960163934963154793e+09);
INSERT INTO "alkstore_wakes" VALUES('__alkstore_stream_wake:orders',7458524209750975687,38,1.7960163934950566292e+09);
INSERT INTO "alkstore_wakes" VALUES('__alkstore_stream_wake:trimmed',7458524209750975687,39,1.79601639349581599239e+09);
CREATE INDEX alkstore_jobs_of_queue on alkstore_jobs(queue, id);
CREATE INDEX alkstore_jobs_ready on alkstore_jobs(queue, priority desc, run_at, id) where lane = 1;
CREATE INDEX alkstore_jobs_due on alkstore_jobs(queue, due, state) where lane = 0;
CREATE INDEX alkstore_jobs_expiry on alkstore_jobs(queue, lane, expires_at) where expires_at is not null;
CREATE INDEX alkstore_jobs_overdue on alkstore_jobs(queue, due) where lane = 2 and state = 1;
CREATE INDEX alkstore_jobs_dead on alkstore_jobs(queue, id) where lane = 3;
CREATE INDEX alkstore_jobs_retention on alkstore_jobs(queue, died_at + dead_retention) where lane = 3 and dead_retention is not null;
CREATE INDEX alkstore_schedules_next on alkstore_schedules(next_at, name);
COMMIT;
