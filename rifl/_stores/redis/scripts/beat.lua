-- Count a replica's beat, take out those that stand still, move the time that was lived
-- through, and return the clock and all of them.
-- ARGV: 5 the replica, 6 whether it leaves, 7 what its own clock shows in ms, then pairs of
-- a dead one and the beats it stood still at
if went_backwards() then return {'backwards', '0'} end
local replicas, age = global .. 'replicas', global .. 'age'
if ARGV[6] == '1' then
  redis.call('HDEL', replicas, ARGV[5])
else
  redis.call('HINCRBY', replicas, ARGV[5], 1)
end
for at = 8, #ARGV, 2 do
  if redis.call('HGET', replicas, ARGV[at]) == ARGV[at + 1] then
    redis.call('HDEL', replicas, ARGV[at])
  end
end

-- One replica's clock counts at a time, and only what it has moved under the eyes of this
-- store: no clock says a date here, but where it begins.
local moving = redis.call('HMGET', age, 'sweeper', 'reading', 'lived')
local lived = tonumber(moving[3]) or now_ms()
if ARGV[6] ~= '1' then
  if moving[1] == ARGV[5] then
    lived = lived + math.max(0, math.min(MOST_LIVED_MS, tonumber(ARGV[7]) - tonumber(moving[2])))
  end
  if moving[1] == ARGV[5] or not moving[1]
    or redis.call('HEXISTS', replicas, moving[1]) == 0 then
    redis.call('HSET', age, 'sweeper', ARGV[5], 'reading', ARGV[7],
      'lived', string.format('%.0f', lived))
  end
end
return reply('ok', string.format('%.0f', now_ms()), unpack(redis.call('HGETALL', replicas)))
