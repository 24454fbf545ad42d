"""Generated from the .proto file beside it."""
