-- Insert or update a named session; the row that stands. A row is "id|state|rest",
-- opaque but for that. ARGV: 5 field, 6 id, 7 row, 8 max names, 9 max open of the
-- peer, 10 the peer, 11 max open of all, 12 max names of the peer, 13 what is kept of the
-- secrets that open it (see is_owner), empty if it has none, 14 whether this is an opening ('1'), whose secret
-- has to open the name and its series, else: 'not-yours'. A new one of a number that its
-- series is closed up to: 'ended'. 15 where its opener is, empty for an authenticated one,
-- 16 max open and 17 max names of that address.
if went_backwards() then return {'backwards', '0'} end
local sessions, ids, open = global .. 'sessions', global .. 'session-ids', global .. 'open-of'
local sources, source = global .. 'sources', ARGV[15]
local names, all_open = global .. 'names-of', global .. 'open'
local function counted(value) return tonumber(value or '0') end
local field = ARGV[5]
local standing = redis.call('HGET', sessions, field)
if not standing then
  local other = redis.call('HGET', ids, ARGV[6])
  standing = other and redis.call('HGET', sessions, other)
  if standing then field = other end
end
local series, number = numbered(field)
local peer_open = 0
if ARGV[14] == '1' and not is_owner(field, ARGV[13]) then return tell('not-yours') end
if standing then
  local id, state = string.match(standing, '^(%d+)|(%a+)|')
  if id ~= ARGV[6] or state ~= 'open' then return reply('row', field, standing) end
  peer_open = -1
else
  if series and closed_up_to(series) >= number then return reply('ended') end
  if redis.call('HLEN', sessions) >= tonumber(ARGV[8])
    or counted(redis.call('HGET', open, ARGV[10])) >= tonumber(ARGV[9])
    or counted(redis.call('GET', all_open)) >= tonumber(ARGV[11])
    or counted(redis.call('HGET', names, ARGV[10])) >= tonumber(ARGV[12])
    or source ~= '' and (
      counted(redis.call('HGET', global .. 'open-from', source)) >= tonumber(ARGV[16])
      or counted(redis.call('HGET', global .. 'names-from', source)) >= tonumber(ARGV[17]))
  then return reply('full') end
  if source ~= '' then redis.call('HSET', sources, ARGV[6], source) end
end
if string.match(ARGV[7], '^%d+|open|') then peer_open = peer_open + 1 end
if peer_open ~= 0 and redis.call('HINCRBY', open, ARGV[10], peer_open) <= 0 then
  redis.call('HDEL', open, ARGV[10])
end
if peer_open ~= 0 and redis.call('INCRBY', all_open, peer_open) < 0 then redis.call('DEL', all_open) end
count_from(ARGV[6], standing and 0 or 1, peer_open)
if not standing then redis.call('HINCRBY', names, ARGV[10], 1) end
if series and string.match(ARGV[7], '^%d+|open|') then
  redis.call('ZADD', open_numbers(series), 0, number .. '|' .. ARGV[6])
elseif series then
  redis.call('ZREM', open_numbers(series), number .. '|' .. ARGV[6])
  if closed_up_to(series) < number then
    redis.call('HSET', global .. 'series', series, number .. '|' .. ARGV[6])
  end
end
if not standing and ARGV[13] ~= '' then own(field, string.match(ARGV[13], '^[^,]*')) end
redis.call('HSET', sessions, field, ARGV[7])
redis.call('HSET', ids, ARGV[6], field)
return reply('row', field, ARGV[7])
