"""Log engines: existing stores whose one primitive of ours is the conditional append."""
