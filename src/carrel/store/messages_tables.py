"""The tables of the log of messages, a database of its own.

Triggers keep the heads, so that what is appended or dropped is one statement and thereby a
whole transaction: every statement more costs its thread several waits for Python's lock.
"""

from __future__ import annotations

from carrel.store.migrations import Schema

APPLICATION_ID = 0x6361_7268
"""`carh`: another than that of the records, so that neither is taken for the other."""

_FIRST = """
-- One row for each space. `total` is the bytes of all bodies that ever were, `dropped` of
-- those that are no longer kept.
CREATE TABLE heads (
    number INTEGER PRIMARY KEY,
    space_id TEXT NOT NULL UNIQUE,
    first INTEGER NOT NULL DEFAULT 1,
    last INTEGER NOT NULL DEFAULT 0,
    total INTEGER NOT NULL DEFAULT 0,
    dropped INTEGER NOT NULL DEFAULT 0
){strict};

-- AUTOINCREMENT remembers the greatest place there was, also when that message is gone.
-- `start` is the bytes of all bodies of the space before this one: the size of any stretch
-- is then a difference of two rows.
CREATE TABLE messages (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    space INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    start INTEGER NOT NULL,
    at REAL NOT NULL,
    type TEXT NOT NULL,
    origin INTEGER NOT NULL,
    body BLOB NOT NULL
){strict};
CREATE UNIQUE INDEX messages_of ON messages (space, seq);

CREATE TABLE cursors (
    consumer TEXT NOT NULL,
    space INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (consumer, space)
){strict_without_rowid};
CREATE INDEX cursors_of ON cursors (space);

CREATE TABLE origins (last INTEGER NOT NULL){strict};
INSERT INTO origins VALUES (0);

CREATE TRIGGER messages_added AFTER INSERT ON messages BEGIN
    UPDATE heads SET last = new.seq, total = new.start + length(new.body)
        WHERE number = new.space;
END;
CREATE TRIGGER messages_told AFTER INSERT ON messages WHEN new.origin > 0 BEGIN
    UPDATE origins SET last = new.origin WHERE last < new.origin;
END;
-- Whatever the order in which SQLite drops them.
CREATE TRIGGER messages_dropped AFTER DELETE ON messages BEGIN
    UPDATE heads SET first = max(first, old.seq + 1),
        dropped = max(dropped, old.start + length(old.body)) WHERE number = old.space;
END;
CREATE TRIGGER heads_dropped AFTER DELETE ON heads BEGIN
    DELETE FROM messages WHERE space = old.number;
    DELETE FROM cursors WHERE space = old.number;
END;
"""

_SECOND = """
-- A row may be several messages of one type that were said at once: then `seq` and `place` are
-- those of the last, and each is a line of `body`.
ALTER TABLE messages ADD COLUMN count INTEGER NOT NULL DEFAULT 1;
"""

MESSAGES = Schema(APPLICATION_ID, (_FIRST, _SECOND), shrinks=True)
