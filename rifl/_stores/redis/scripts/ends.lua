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

if what == 'remember' then
  -- 6 a call whose outcome was unknown, 7 what is to be remembered of it
  keep_unknown(ARGV[6], ARGV[7])
  return reply('ok')
end

if what == 'unresolved' then
  -- How many calls have an unknown outcome that no operator has settled, and the oldest's age in
  -- ms. Then, as long as their replicas live, of others: a replica, how many, and the oldest's age.
  local now, owners, counts, ages = now_ms(), {}, {}, {}
  local function count(owner, since)
    if not counts[owner] then
      table.insert(owners, owner)
      counts[owner], ages[owner] = 0, 0
    end
    counts[owner] = counts[owner] + 1
    -- If since when is known.
    if since > 0 then ages[owner] = math.max(ages[owner], now - since) end
  end
  local unknown = redis.call('HGETALL', shared .. 'unknown')
  for at = 2, #unknown, 2 do
    local since, note = string.match(unknown[at], '^(%d+)\n.-\n(.*)$')
    if note == '' then count('', tonumber(since)) end
    local owner = string.match(note, '^@(.-)@')
    if owner then count(owner, tonumber(since)) end
  end
  local intents = redis.call('HGETALL', shared .. 'intents')
  for at = 2, #intents, 2 do
    local since, owner = string.match(intents[at], '^(%d+)\n(.*)$')
    count(owner, tonumber(since))
  end
  local found = {}
  for _, owner in ipairs(owners) do
    for _, part in ipairs({owner, string.format('%.0f', counts[owner]),
      string.format('%.0f', ages[owner])}) do table.insert(found, part) end
  end
  return tell('ok', unpack(found))
end

if what == 'due' then
  -- 6 how many; the time that was lived through, the number of living replicas, these, then
  -- ids with their times
  local found = redis.call('HKEYS', global .. 'replicas')
  local living = #found
  local lived = redis.call('HGET', global .. 'age', 'lived') or '0'
  forget_unknown(tonumber(lived))
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
