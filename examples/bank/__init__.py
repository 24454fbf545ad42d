"""A small bank on SQLite, written as anyone would write it."""
