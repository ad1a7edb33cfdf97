BEGIN TRANSACTION;
CREATE TABLE account (number INTEGER PRIMARY KEY, spent INTEGER NOT NULL, hash TEXT NOT NULL);
CREATE TABLE entry (
    seq INTEGER PRIMARY KEY, kind TEXT NOT NULL,
    asker TEXT, campaign TEXT, round INTEGER, place INTEGER,
    what TEXT NOT NULL, digest TEXT NOT NULL,
    epsilon INTEGER NOT NULL, spent INTEGER NOT NULL,
    time TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL,
    answer TEXT, sealed TEXT,
    UNIQUE (asker, campaign, round, place)
);
INSERT INTO "entry" VALUES(1,'policy',NULL,NULL,NULL,NULL,'{"approve": false, "budget": "population", "epsilon": 2.0, "minimum_epsilon": 0.001, "rows_per_person": 1}','',0,0,'2026-11-18T19:54:34+00:00','','438f8c720bf133c375a77f7eb60de7b6ef6b5a751954ab95c376909f90ef00ad',NULL,NULL);
INSERT INTO "entry" VALUES(2,'charge','local','spring',0,0,'{"kind":"gap","temperature":1.0}','281ba23d4f2caf1a656dd426df6b7e9d4069bf1bb0408a9005505cd15a1e88fc',250000000,250000000,'2026-11-18T19:54:34+00:00','438f8c720bf133c375a77f7eb60de7b6ef6b5a751954ab95c376909f90ef00ad','4e3ce7ab5487698e6e82f7282dcf08f767ad743b0340281c87fdcd75874486b1','[-8566773]','38b49e91b0708cff9234fff2f6b82d5174436efb215bbf87de3cd22a190c495a');
INSERT INTO "entry" VALUES(3,'charge','acme','autumn',0,0,'{"kind":"gap","temperature":1.0}','281ba23d4f2caf1a656dd426df6b7e9d4069bf1bb0408a9005505cd15a1e88fc',250000000,500000000,'2026-11-18T19:54:34+00:00','4e3ce7ab5487698e6e82f7282dcf08f767ad743b0340281c87fdcd75874486b1','ca19b2903f53aa6414adaf04a01081a57781edc2753918c6978aae0275ddad68','[134168]','411f4485964819639b127d761bde69ececea9e515f3413cf03e807e6cd0f0c1f');
INSERT INTO "entry" VALUES(4,'policy',NULL,NULL,NULL,NULL,'{"approve": false, "budget": "population", "epsilon": 1.0, "minimum_epsilon": 0.001, "rows_per_person": 1}','',0,500000000,'2026-11-18T19:54:34+00:00','ca19b2903f53aa6414adaf04a01081a57781edc2753918c6978aae0275ddad68','636c4df63421594dbbca9a253c394c4fba05ce8608acddcf48af3a724f612943',NULL,NULL);
CREATE TABLE ledger (
    id TEXT, secret TEXT, name TEXT, unit TEXT, marks TEXT, created TEXT, hash TEXT
);
INSERT INTO "ledger" VALUES('4e19be9407e5dd92bdf06fbf6be64128','185d734b54e6a20c66952154efecb35b95e11e0f6131d62dd5ee164c5c631f11','plain','row','/nowhere/marks.db','2026-11-18T19:54:33+00:00','ab9eca374a111490cb8d9ff5363218b37f28bcb6d90fb3287a69ba0538dc8000');
CREATE TABLE member (number INTEGER PRIMARY KEY, persons BLOB NOT NULL);
CREATE TABLE reserved (
    asker TEXT NOT NULL, campaign TEXT NOT NULL, nano INTEGER NOT NULL, alone INTEGER NOT NULL,
    requests INTEGER NOT NULL, since INTEGER NOT NULL, seen REAL NOT NULL,
    PRIMARY KEY (asker, campaign)
);
CREATE TABLE waiting (
    number INTEGER PRIMARY KEY, asker TEXT NOT NULL, campaign TEXT NOT NULL, what TEXT NOT NULL,
    time TEXT NOT NULL, UNIQUE (asker, campaign)
);
CREATE INDEX by_kind ON entry (kind, seq);
PRAGMA application_id = 1885566513;
PRAGMA user_version = 2;
COMMIT;
