-- Serve again from what is there, under a new id: processes that know more stay away, since
-- they know the old one.
-- ARGV: 5 the fresh id, 6 what to do: 'row', of a client (7 'all': one with keys, too), before
-- 'store'; 7 who, 8 why.
local meta = global .. 'meta'
if ARGV[6] == 'row' then
  local row = redis.call('HMGET', ROW, 'store', 'state')
  if not row[1] then return tell('gone') end
  redis.call('HSET', ROW, 'store', ARGV[5])
  -- What of a client's is gone would run again: it is over. A session's keys are its own.
  if not row[2] and (ARGV[7] == 'all' or not redis.call('HGET', ROW, 'keys')) then
    redis.call('HSET', ROW, 'state', 'over', 'due', '0')
  end
  return tell('ok')
end

local found = redis.call('HMGET', meta, 'store', 'stopped')
if not found[1] then return tell('gone') end
redis.call('RPUSH', global .. 'losses', cjson.encode({
  accepted_at_unix_s = math.floor(now_ms() / 1000), who = ARGV[7], why = ARGV[8],
  stopped = found[2] == '1', store_before = found[1], store = ARGV[5]}))
redis.call('HDEL', meta, 'stopped')
redis.call('HSET', meta, 'store', ARGV[5])
-- Ids that may have been granted and lost are never granted again.
redis.call('INCRBY', global .. 'ids', '9007199254740992')
redis.call('DEL', global .. 'replicas')
return tell('ok')
