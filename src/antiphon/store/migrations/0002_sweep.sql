PRAGMA user_version = 2;

-- What is still to be done so that nothing of an erased channel is left in any file: 'vacuum' in a file that was written
-- when deleted content was not overwritten yet, 'truncate' while something erased may be in the write-ahead log.
CREATE TABLE sweep (
    work TEXT NOT NULL PRIMARY KEY
) WITHOUT ROWID;
INSERT INTO sweep SELECT 'vacuum' WHERE EXISTS (SELECT 1 FROM log);
