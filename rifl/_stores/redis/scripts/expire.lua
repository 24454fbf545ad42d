-- Let go of keyed calls whose retention is over: all of a key in one step, so that it
-- is new only when nothing of it is left.
--
-- ARGV: 5 how many at most, 6 record of a lost call, 7 whether this is a namespace,
-- 8 the time that was lived through in ms, 9.. the living replicas
local limit, lost, namespace = tonumber(ARGV[5]), ARGV[6], ARGV[7] == '1'
if went_backwards() then return {'backwards', '0'} end
if redis.call('EXISTS', ROW) == 0 then return tell('gone', '0') end

local now = now_ms()
local lived = tonumber(ARGV[8])
-- Nobody has begun to count these.
local fresh = redis.call('ZRANGEBYSCORE', ENDS, '-inf', '(0', 'WITHSCORES', 'LIMIT', 0, limit)
for at = 1, #fresh, 2 do
  local ends = lived + MOST_LIVED_MS - tonumber(fresh[at + 1])
  redis.call('ZADD', ENDS, string.format('%.0f', ends), fresh[at])
end
local over = redis.call('ZRANGEBYSCORE', ENDS, '0', ARGV[8], 'LIMIT', 0, limit)
for _, member in ipairs(over) do
  local _, record = completed(member)
  if record then count_key(-1, 1 - #member - #record) end
  redis.call('HDEL', DONE, member)
  redis.call('ZREM', ENDS, member)
end

-- A client's calls end with its lease; a namespace has none. A replica that came since
-- the living were counted has no call as old as this.
if namespace then
  local living = {}
  for at = 9, #ARGV do living[ARGV[at]] = true end
  local attempts = redis.call('HGETALL', RUN)
  for at = 1, #attempts, 2 do
    local member, attempt = attempts[at], cmsgpack.unpack(attempts[at + 1])
    if not living[attempt.o] and attempt.c < now - LATE_MS then
      ended(member, attempt)
      if attempt.k == 'plain' then
        complete(member, attempt, attempt.f, lost, true)
      else
        count_key(-1, 1 - #member)
      end
    end
  end
end

local function number(value) return string.format('%.0f', value) end
-- Looks are at dates: a clock that jumps brings one early, or late.
local look = tonumber(redis.call('ZRANGE', ENDS, 0, 0, 'WITHSCORES')[2])
if look then look = now + math.max(0, look - lived) end
local keys = tonumber(redis.call('HGET', ROW, 'keys') or '0')
if keys > redis.call('ZCARD', ENDS) and redis.call('HLEN', RUN) > 0 then
  look = math.min(look or now + LATE_MS, now + LATE_MS)
end
if look then
  look = number(math.max(look, now + 1))
  redis.call('HSET', ROW, 'look', look)
  return reply('look', number(#over), look)
end
redis.call('HDEL', ROW, 'look')
if namespace and keys == 0 then redis.call('DEL', ROW) end
return reply('gone', number(#over))
