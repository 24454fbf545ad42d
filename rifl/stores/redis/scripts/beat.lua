-- Count a replica's beat, take out those that stand still, and return the clock and
-- all of them.
-- ARGV: 5 the replica, 6 whether it leaves, then pairs of a dead one and the beats it
-- stood still at
if went_backwards() then return {'backwards', '0'} end
local replicas = global .. 'replicas'
if ARGV[6] == '1' then
  redis.call('HDEL', replicas, ARGV[5])
else
  redis.call('HINCRBY', replicas, ARGV[5], 1)
end
for at = 7, #ARGV, 2 do
  if redis.call('HGET', replicas, ARGV[at]) == ARGV[at + 1] then
    redis.call('HDEL', replicas, ARGV[at])
  end
end
return reply('ok', string.format('%.0f', now_ms()), unpack(redis.call('HGETALL', replicas)))
