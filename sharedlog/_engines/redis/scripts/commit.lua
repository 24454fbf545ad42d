-- KEYS: 5... the tags' sorted sets.
-- ARGV: 4 this step's mark; 5 the writer's time; 6 '1' to write in any case; a count of
-- conditions, of each: key, '1' if it is there, value; a count of puts, of each: key, what is done
-- ('delete', 'put', or with the LSN behind it 'first' or 'last'), value, term in microseconds or '';
-- values begin with their checksums (see checksums.py);
-- a count of entries, of each: tags, checksum, body, the places of its tags in KEYS.
--
-- A script is not undone: all is judged before the first write, and the first write is one that a
-- server without room refuses, where there are entries. Keys alone are put without room, too: so
-- that a fence is raised and a trim declared, which makes room.
local place = 7
local function next_argument()
  place = place + 1
  return ARGV[place - 1]
end

local good, found = true, {}
for number = 1, tonumber(next_argument()) do
  local key, there, value = next_argument(), next_argument(), next_argument()
  found[number] = value_of(key)
  if there == '1' then good = good and found[number] == value else good = good and not found[number] end
end
if not good then
  -- A write of its own, for WAIT waits for this connection's writes: what is found may be what
  -- another reply, which was lost, was about.
  if ARGV[6] == '1' then redis.call('HSET', head, 'asked_again', ARGV[4]) end
  local refused = reply('refused')
  for number = 1, #found do refused[4 + number] = found[number] end
  return refused
end

local puts = place
place = place + 1 + 4 * tonumber(ARGV[place])
local count = tonumber(next_argument())
local first, last = tail + 1, tail + count
if count == 0 then
  first = tail
  redis.call('HDEL', head, 'none')
end
step, mark = step + 1, ARGV[4]
redis.call('HSET', head, 'step', text(step), 'mark', mark)

for number = 1, count do
  local tags, checksum, body = next_argument(), next_argument(), next_argument()
  if number == 1 then
    at_us = math.max(at_us, tonumber(ARGV[5]))
    redis.call('HSET', head, 'tail', text(last), 'at_us', text(at_us))
  end
  local lsn = text(tail + number)
  redis.call('XADD', entries, lsn .. '-0', 't', tags, 'c', checksum, 'm', text(at_us), 'b', body)
  for tag in string.gmatch(next_argument(), '%d+') do
    redis.call('ZADD', KEYS[tonumber(tag)], lsn, lsn)
  end
end

place = puts
for _ = 1, tonumber(next_argument()) do
  local key, done, value, term = next_argument(), next_argument(), next_argument(), next_argument()
  if term ~= '' then
    local ends = text(now_us() + tonumber(term))
    terms = terms + redis.call('HSET', head, 'ends:' .. key, ends, 'term:' .. key, term) / 2
    redis.call('HSET', head, 'terms', text(terms))
  elseif terms > 0 and redis.call('HDEL', head, 'ends:' .. key, 'term:' .. key) > 0 then
    terms = terms - 1
    redis.call('HSET', head, 'terms', text(terms))
  end
  if done == 'delete' then
    redis.call('HDEL', values, key)
    redis.call('ZREM', names, key)
  else
    if done ~= 'put' then
      -- The checksum in front is below 2^32 so far.
      local lsn = done == 'first' and first or last
      local checksum = struct.pack('>I8', struct.unpack('>I8', value) + lsn)
      value = checksum .. string.sub(value, 9) .. struct.pack('>I8', lsn)
    end
    if redis.call('HSET', values, key, value) == 1 then redis.call('ZADD', names, 0, key) end
  end
end
tail = last
return reply('ok', first, last)
