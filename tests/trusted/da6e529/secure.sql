BEGIN TRANSACTION;
CREATE TABLE account (number INTEGER PRIMARY KEY, spent INTEGER NOT NULL, hash TEXT NOT NULL);
INSERT INTO "account" VALUES(1,100000000,'48ccb317840b3224ff763f779a715c20fb3a5eccd618013e777e5c1de4d2ae5a');
CREATE TABLE entry (
    seq INTEGER PRIMARY KEY, kind TEXT NOT NULL,
    asker TEXT, campaign TEXT, round INTEGER, place INTEGER,
    what TEXT NOT NULL, digest TEXT NOT NULL,
    epsilon INTEGER NOT NULL, spent INTEGER NOT NULL,
    time TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL,
    answer TEXT, sealed TEXT,
    UNIQUE (asker, campaign, round, place)
);
INSERT INTO "entry" VALUES(1,'policy',NULL,NULL,NULL,NULL,'{"approve": false, "budget": "person", "epsilon": 1.0, "minimum_epsilon": 0.001, "rows_per_person": 1, "secure": {"alone": 10, "colluding": 2, "min_honest": 2, "required": false}}','',0,0,'2026-11-18T19:54:34+00:00','','9900b87f08f2287c7020852fd07376d382957e225c86dfaebf44febf032f8bd5',NULL,NULL);
INSERT INTO "entry" VALUES(2,'charge','local','spring',0,0,'{"kind":"gap","temperature":1.0}','71bc74caa729fa895b15b2e35701bcfb012444ddded625f9f04a7000fa5838c8',100000000,100000000,'2026-11-18T19:54:34+00:00','9900b87f08f2287c7020852fd07376d382957e225c86dfaebf44febf032f8bd5','475920b97b39dc0fe9b4dfc421fe5ee73917412214c423ff3618c3c87b8f9629','[-9733598]','410d43b9ece896207849058f9d6ab2da4a0260f4ce116799966e75de2e7c0af0');
INSERT INTO "entry" VALUES(3,'persons',NULL,NULL,NULL,NULL,'e26d6bb1bd376960a7d3cc003a3d455447664e3ea60ffd6e31177cf5e70759b5','',0,100000000,'2026-11-18T19:54:34+00:00','475920b97b39dc0fe9b4dfc421fe5ee73917412214c423ff3618c3c87b8f9629','f523ed14842506538196329f4df948f9d89f3c33802b26db6f1368d545d43a24',NULL,NULL);
INSERT INTO "entry" VALUES(4,'share','ann','sum',0,0,'{"alone":10,"query":{"kind":"gap","temperature":1.0}}','tttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttt',50000000,150000000,'2026-11-18T19:54:34+00:00','f523ed14842506538196329f4df948f9d89f3c33802b26db6f1368d545d43a24','39a5e19ad2d8adf0c5366dcdd250c2dae5afe06b2bd9fdb87c79bb2f3ce79cb5','sealed','d6fa437eb1c31b457b9b341e27ca02afa023129f11da2848ecebfc1712be44c7');
INSERT INTO "entry" VALUES(5,'opening',NULL,NULL,NULL,NULL,'["ann","sum",0,0]','oooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooo',0,150000000,'2026-11-18T19:54:34+00:00','39a5e19ad2d8adf0c5366dcdd250c2dae5afe06b2bd9fdb87c79bb2f3ce79cb5','fdb8d892b94725bcceb4b813bf90a05a988a06ec9fb15c4e22a17c0602d2aa8f','[7]','4b8e4b21a1469a1334464b6a858c3a8ab5842a6d9c4af9d19dd30964fe518ac9');
CREATE TABLE ledger (
    id TEXT, secret TEXT, name TEXT, unit TEXT, marks TEXT, created TEXT, hash TEXT
);
INSERT INTO "ledger" VALUES('02e6c6522ae3a7ccb67ff17c9a1a5902','c402f1cce9ee1f669dfeaef882dddcf8127f1134a03548406edc3f0d1f75fa20','secure','person','/nowhere/marks.db','2026-11-18T19:54:34+00:00','5d6db36b96d09d78ddb618f3f8a4c40121e64a97ec88e4ecd66c2ddeb0551206');
CREATE TABLE member (number INTEGER PRIMARY KEY, persons BLOB NOT NULL);
INSERT INTO "member" VALUES(1,X'4CD140C18376EB0BEF0D9CEE5268E0E9EF1697812E0F7A1729F2C5E5F51E8648F0AF245D274483A7CE6F367F32E8F9EC');
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
CREATE UNIQUE INDEX one_opening ON entry (what) WHERE kind = 'opening';
PRAGMA application_id = 1885566513;
PRAGMA user_version = 3;
COMMIT;
