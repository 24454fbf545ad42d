-- ARGV: 3 what to do, 4 configuration, 5 replica, 6 address, 7 term in ms, 8... metadata.
-- Leases end by this server's clock.
local now = now_ms()
local leader = redis.call('HMGET', control, 'replica', 'address', 'expires_ms', 'term_ms')
local expires_ms = tonumber(leader[3] or '0')
local action, given = ARGV[3], ARGV[4]

local function begin(replica, address)
  configuration = configuration + 1
  redis.call('HSET', control, 'configuration', text(configuration), 'replica', replica,
    'address', address, 'expires_ms', text(now + tonumber(ARGV[7])), 'term_ms', ARGV[7])
  return {'ok', tail, configuration}
end

if action == 'take' then
  if configuration > 0 and leader[1] ~= ARGV[5] and expires_ms > now then
    return {'held', tail, leader[1], expires_ms - now}
  end
  return begin(ARGV[5], ARGV[6])
end
if action == 'end' then
  if current(given) and expires_ms > now then
    redis.call('HSET', control, 'expires_ms', text(now), 'term_ms', '0')
  end
  return {'ok', tail}
end
if not current(given) then return refusal() end
if action == 'next' then
  write_metadata(8)
  return begin(leader[1], leader[2])
end
redis.call('HSET', control, 'expires_ms', text(now + tonumber(ARGV[7])), 'term_ms', ARGV[7])
return {'ok', tail}
