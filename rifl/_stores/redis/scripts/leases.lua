-- What the lease server keeps beside the rows. ARGV: 5 what to do, 6.. as it says
local what = ARGV[5]
if went_backwards() then return {'backwards', '0'} end
local due, secrets, sessions = global .. 'due', global .. 'secrets', global .. 'sessions'
-- Whom a lease counts for, by its id, and how many leases count for one.
local holders, leases_of = global .. 'holders', global .. 'leases-of'

if what == 'ids' then
  -- Not computed in Lua: a number there holds 53 bits.
  redis.call('INCRBY', global .. 'ids', ARGV[6])
  return reply('ok', redis.call('GET', global .. 'ids'))
end

if what == 'secrets' then
  -- 6 a fresh value, 7 whether it is to be added to those that are there, once: a
  -- request that is repeated since its reply was lost must not push out the other one
  local newest = redis.call('LINDEX', secrets, 0)
  local repeated = newest and string.match(newest, '^%d+:(.*)$') == ARGV[6]
  if not newest or ARGV[7] == '1' and not repeated then
    local id = newest and (tonumber(string.match(newest, '^%d+')) + 1) % 65536 or 0
    redis.call('LPUSH', secrets, id .. ':' .. ARGV[6])
    redis.call('LTRIM', secrets, 0, 1)
  end
  return reply('ok', unpack(redis.call('LRANGE', secrets, 0, -1)))
end

if what == 'index' then
  -- 6 id, 7 length in ms, 8 how many clients there may be, 9 whom its lease counts for, if
  -- for any, 10 how many leases that one may have, 0 for no bound
  if redis.call('ZCARD', due) >= tonumber(ARGV[8]) then return tell('full') end
  local most = tonumber(ARGV[10])
  -- Once: a request may be repeated.
  if ARGV[9] ~= '' and redis.call('HEXISTS', holders, ARGV[6]) == 0 then
    if most > 0 and tonumber(redis.call('HGET', leases_of, ARGV[9]) or '0') >= most then
      return tell('taken')
    end
    redis.call('HSET', holders, ARGV[6], ARGV[9])
    redis.call('HINCRBY', leases_of, ARGV[9], 1)
  end
  redis.call('ZADD', due, string.format('%.0f', now_ms() + tonumber(ARGV[7])), ARGV[6])
  return reply('ok')
end

if what == 'due' then
  -- 6 how many, 7 whether only those that were given up
  local limit = ARGV[7] == '1' and '0' or string.format('%.0f', now_ms())
  return tell('ok', string.format('%.0f', now_ms()),
    unpack(redis.call('ZRANGEBYSCORE', due, '-inf', limit, 'LIMIT', 0, ARGV[6])))
end

if what == 'refile' then
  -- 6 id, 7 when it is due
  redis.call('ZADD', due, ARGV[7], ARGV[6])
  return reply('ok')
end

if what == 'end' then
  -- 6 field of a numbered session: from here on no number up to it is opened. The id
  -- that was the end of the series before, and open ones up to it, some at a time.
  -- 7 the secrets that are shown
  if not is_owner(ARGV[6], ARGV[7]) then return tell('not-yours') end
  local series, number = numbered(ARGV[6])
  local mark, before = closed_up_to(series)
  local row = redis.call('HGET', sessions, ARGV[6])
  if mark < number then
    if not row then return reply('unknown') end
    redis.call('HSET', global .. 'series', series, number .. '|' .. string.match(row, '^%d+'))
  end
  local open = redis.call('ZRANGEBYLEX', open_numbers(series), '-', '[' .. number .. '|~',
    'LIMIT', 0, 1000)
  for at = 1, #open do open[at] = string.match(open[at], '%d+$') end
  return reply('ok', before, unpack(open))
end

if what == 'opens' then
  -- 6 field, 7 the secrets that are shown
  return reply(is_owner(ARGV[6], ARGV[7]) and 'ok' or 'not-yours')
end

if what == 'place' then
  -- 6 field of a numbered session, 7 its id: below the end of its series, at the end of
  -- one that is in use, or free to be forgotten when its time is over
  local series, number = numbered(ARGV[6])
  local mark, id = closed_up_to(series)
  if mark > number then return tell('below') end
  local used = redis.call('EXISTS', open_numbers(series)) == 1
  return tell(id == ARGV[7] and used and 'needed' or 'free')
end

if what == 'forget' then
  -- 6 id of a session: its name may be opened anew
  local field = redis.call('HGET', global .. 'session-ids', ARGV[6])
  if field then
    local series, number = numbered(field)
    local standing = redis.call('HGET', sessions, field) or ''
    if string.match(standing, '^(%d+|open)|') == ARGV[6] .. '|open' then
      -- Never used, so never ended.
      local of, peer = global .. 'open-of', string.match(field, '^(%x*)|')
      if redis.call('HINCRBY', of, peer, -1) <= 0 then redis.call('HDEL', of, peer) end
      if redis.call('INCRBY', global .. 'open', -1) <= 0 then redis.call('DEL', global .. 'open') end
      if series then redis.call('ZREM', open_numbers(series), number .. '|' .. ARGV[6]) end
      count_from(ARGV[6], 0, -1)
    end
    if series then
      local _, id = closed_up_to(series)
      if id == ARGV[6] and redis.call('EXISTS', open_numbers(series)) == 0 then
        redis.call('HDEL', global .. 'series', series)
      end
    end
    local row = redis.call('HGET', sessions, field)
    if row and string.match(row, '^(%d+)|') == ARGV[6] then
      redis.call('HDEL', sessions, field)
      redis.call('HDEL', global .. 'owners', 'n' .. field)
      if series and redis.call('EXISTS', open_numbers(series)) == 0
        and redis.call('HEXISTS', global .. 'series', series) == 0 then
        redis.call('HDEL', global .. 'owners', 's' .. series)
      end
      local peer = string.match(field, '^(%x*)|')
      local names = global .. 'names-of'
      if redis.call('HINCRBY', names, peer, -1) <= 0 then redis.call('HDEL', names, peer) end
      count_from(ARGV[6], -1, 0)
      redis.call('HDEL', global .. 'sources', ARGV[6])
    end
    redis.call('HDEL', global .. 'session-ids', ARGV[6])
  end
  redis.call('ZREM', due, ARGV[6])
  return reply('ok')
end

-- unfile: 6 id
redis.call('ZREM', due, ARGV[6])
local holder = redis.call('HGET', holders, ARGV[6])
if holder then
  redis.call('HDEL', holders, ARGV[6])
  if redis.call('HINCRBY', leases_of, holder, -1) <= 0 then
    redis.call('HDEL', leases_of, holder)
  end
end
return reply('ok')
