-- KEYS: 4... the tags' sorted sets.
-- ARGV: 3 configuration, 4 expected tail, 5 append id, 6 append id of the entry at the
-- expected tail, if its caller knows it, else ''; 7, 8, 9 condition; 10... metadata; a
-- count of entries, for each: tags, checksum, body, how many tags, the place of each in KEYS.
local expected, append_id = tonumber(ARGV[4]), ARGV[5]
if expected >= trimmed and expected < tail then
  local entry = entry_at(expected + 1)
  if entry and entry[APPEND_ID] == append_id then
    -- A write of its own, for WAIT waits for this connection's writes.
    redis.call('HSET', control, 'asked_again', append_id)
    return {'ok', tail, expected + tonumber(entry[COUNT])}
  end
end
if not current(ARGV[3]) or expected ~= tail then return refusal() end
if ARGV[6] ~= '' and tail > trimmed then
  local last = entry_at(tail)
  if not last or last[APPEND_ID] ~= ARGV[6] then return {'changed', tail} end
end
local good, value = holds(7)
if not good then return refusal(value) end

local place = write_metadata(10)
local count = tonumber(ARGV[place])
place = place + 1
for number = 1, count do
  local lsn = text(tail + number)
  redis.call('XADD', log, lsn .. '-0', 'a', append_id, 'n', text(count - number + 1),
    't', ARGV[place], 'c', ARGV[place + 1], 'b', ARGV[place + 2])
  local tags = tonumber(ARGV[place + 3])
  for tag = place + 4, place + 3 + tags do
    redis.call('ZADD', KEYS[tonumber(ARGV[tag])], lsn, lsn)
  end
  place = place + 4 + tags
end
redis.call('HSET', control, 'tail', text(tail + count))
return {'ok', tail + count, tail + count}
