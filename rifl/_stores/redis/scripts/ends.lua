-- The index of clients and namespaces whose keys are to be looked at, by when.
-- ARGV: 5 what to do, 6.. as it says
local what, index = ARGV[5], global .. 'ends'
local FORGOTTEN_AT_ONCE = 1000
if went_backwards() then return {'backwards', '0'} end

if what == 'file' then
  -- 6 id, 7 in how many ms, 8 and not earlier than in how many: whoever files has to
  -- come back before anybody looks
  local now = now_ms()
  local standing = tonumber(redis.call('ZSCORE', index, ARGV[6]) or math.huge)
  local at = math.max(now + tonumber(ARGV[8]), math.min(standing, now + tonumber(ARGV[7])))
  at = string.format('%.0f', at)
  redis.call('ZADD', index, at, ARGV[6])
  return reply('ok', at)
end

if what == 'remember' then
  -- 6 a call whose outcome was unknown, 7 what is to be remembered of it
  redis.call('HSET', global .. 'unknown', ARGV[6], ARGV[7])
  redis.call('ZADD', global .. 'unknown-at',
    redis.call('HGET', global .. 'age', 'lived') or string.format('%.0f', now_ms()), ARGV[6])
  return reply('ok')
end

if what == 'unresolved' then
  -- How many calls have an unknown outcome that no operator has settled, and the oldest's age in
  -- ms. Also plain ones whose replica is gone, and that no client asked for since.
  local calls, oldest = 0, now_ms()
  local function count(since)
    calls = calls + 1
    -- Nobody knows since when.
    if since > 0 then oldest = math.min(oldest, since) end
  end
  for at, entry in ipairs(redis.call('HGETALL', global .. 'unknown')) do
    local since, note = string.match(entry, '^(%d+)\n.-\n(.*)$')
    if at % 2 == 0 and note == '' then count(tonumber(since)) end
  end
  local intents = redis.call('HGETALL', global .. 'intents')
  for at = 2, #intents, 2 do
    local since, owner = string.match(intents[at], '^(%d+)\n(.*)$')
    if redis.call('HEXISTS', global .. 'replicas', owner) == 0 then count(tonumber(since)) end
  end
  return tell('ok', string.format('%.0f', calls), string.format('%.0f', now_ms() - oldest))
end

-- Forget what is remembered for too long, by the time that was lived through, or too much.
local function forget(lived)
  local old = redis.call('ZRANGEBYSCORE', global .. 'unknown-at', '-inf',
    string.format('%.0f', lived - REMEMBERED_MS), 'LIMIT', 0, FORGOTTEN_AT_ONCE)
  if #old == 0 then
    local over = redis.call('ZCARD', global .. 'unknown-at') - REMEMBERED
    if over <= 0 then return end
    old = redis.call('ZRANGE', global .. 'unknown-at', 0, math.min(over, FORGOTTEN_AT_ONCE) - 1)
  end
  for _, field in ipairs(old) do
    redis.call('HDEL', global .. 'unknown', field)
    redis.call('ZREM', global .. 'unknown-at', field)
  end
end

if what == 'due' then
  -- 6 how many; the time that was lived through, the number of living replicas, these, then
  -- ids with their times
  local found = redis.call('HKEYS', global .. 'replicas')
  local living = #found
  local lived = redis.call('HGET', global .. 'age', 'lived') or '0'
  forget(tonumber(lived))
  for _, part in ipairs(redis.call('ZRANGEBYSCORE', index, '-inf', now_ms(), 'WITHSCORES',
    'LIMIT', 0, ARGV[6])) do table.insert(found, part) end
  return tell('ok', lived, tostring(living), unpack(found))
end

-- move: 6 id, 7 the time it was found at, 8 the new one, empty for none. Not if it was
-- filed anew meanwhile: then somebody has keys there.
if redis.call('ZSCORE', index, ARGV[6]) == ARGV[7] then
  if ARGV[8] == '' then
    redis.call('ZREM', index, ARGV[6])
  else
    redis.call('ZADD', index, ARGV[8], ARGV[6])
  end
end
return reply('ok')
