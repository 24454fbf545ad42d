-- KEYS: 4 the snapshot's chunks, if asked for one. ARGV: 3 its id, 4 the chunk's number.
local found = redis.call('HMGET', control, 'snapshot_id', 'snapshot_lsn', 'snapshot_chunks', 'saving')
local chunk = false
if KEYS[4] and found[1] == ARGV[3] then chunk = redis.call('HGET', KEYS[4], ARGV[4]) end
return {'ok', tail, trimmed, found[1] or '', found[2] or '', found[3] or '', found[4] or '', chunk}
