-- KEYS: 4 the chunks of the snapshot being written, 5 those of the one to be removed.
-- ARGV: 3 what to do, 4 configuration, 5 the new one's id, 6 its LSN, 7 the old one's id.
local action = ARGV[3]
if not current(ARGV[4]) then return refusal() end
if action == 'begin' or action == 'finish' then
  local lsn = tonumber(ARGV[6])
  if lsn > tail or lsn < math.max(snapshot, 0) then return refusal() end
end
if action == 'begin' then
  -- The old one is what a save that broke off has left.
  if (redis.call('HGET', control, 'saving') or '') ~= ARGV[7] then return {'again', tail} end
  redis.call('UNLINK', KEYS[5])
  redis.call('HSET', control, 'saving', ARGV[5])
  return {'ok', tail}
end
if redis.call('HGET', control, 'saving') ~= ARGV[5] then return {'superseded', tail} end
if action == 'chunk' then
  -- ARGV: 7 its number, 8 checksum and body.
  redis.call('HSET', KEYS[4], ARGV[7], ARGV[8])
  return {'ok', tail}
end
if (redis.call('HGET', control, 'snapshot_id') or '') ~= ARGV[7] then return {'again', tail} end
local count = redis.call('HLEN', KEYS[4])
redis.call('HSET', control, 'snapshot_id', ARGV[5], 'snapshot_lsn', ARGV[6],
  'snapshot_chunks', count)
redis.call('HDEL', control, 'saving')
redis.call('UNLINK', KEYS[5])
return {'ok', tail}
