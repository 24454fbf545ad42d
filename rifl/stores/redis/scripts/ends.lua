-- The index of clients and namespaces whose keys are to be looked at, by when.
-- ARGV: 5 what to do, 6.. as it says
local what, index = ARGV[5], global .. 'ends'
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

if what == 'due' then
  -- 6 how many; the time that was lived through, the number of living replicas, these, then
  -- ids with their times
  local found = redis.call('HKEYS', global .. 'replicas')
  local living = #found
  local lived = redis.call('HGET', global .. 'age', 'lived') or '0'
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
