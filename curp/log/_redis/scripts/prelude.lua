-- What every script begins with. All keys of a group share a hash tag, so a slot.
--
-- KEYS: 1 the control hash, 2 the stream of entries, 3 the metadata hash.
-- ARGV: 1 the log's id, 2 the highest tail its caller has seen.
--
-- A script decides; what it found goes back with a refusal, and the caller names it.
local control, log, metadata = KEYS[1], KEYS[2], KEYS[3]
local row = redis.call('HMGET', control, 'log_id', 'configuration', 'tail', 'trimmed', 'snapshot_lsn')
if row[1] ~= ARGV[1] then return {'other'} end
local configuration, tail, trimmed = tonumber(row[2]), tonumber(row[3]), tonumber(row[4])
local snapshot = tonumber(row[5] or '-1')
if tail < tonumber(ARGV[2]) then return {'back', tail} end

local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function text(number) return string.format('%.0f', number) end

local function entry_at(lsn)
  local id = text(lsn) .. '-0'
  local found = redis.call('XRANGE', log, id, id)
  return found[1] and found[1][2]
end

-- An entry's fields are a (append id), n (entries of that append from here on), t
-- (tags, JSON), c (checksum), b (body), in this order.
local APPEND_ID, COUNT, TAGS, CHECKSUM, BODY = 2, 4, 6, 8, 10

-- Whether that is the current number, which is above 0.
local function current(given) return configuration > 0 and tonumber(given) == configuration end

-- Facts for a refusal, judged again by its caller.
local function refusal(value)
  return {'refused', configuration, tail, trimmed, snapshot, value or false}
end

-- From ARGV[place] on: a count, then key, '1' or '0' for deletion, value.
local function write_metadata(place)
  local count = tonumber(ARGV[place])
  place = place + 1
  for _ = 1, count do
    if ARGV[place + 1] == '1' then
      redis.call('HSET', metadata, ARGV[place], ARGV[place + 2])
    else
      redis.call('HDEL', metadata, ARGV[place])
    end
    place = place + 3
  end
  return place
end

-- From ARGV[place] on: 'none', 'absent' or 'equal', key, value.
local function holds(place)
  if ARGV[place] == 'none' then return true end
  local value = redis.call('HGET', metadata, ARGV[place + 1])
  if ARGV[place] == 'absent' then return not value, value end
  return value == ARGV[place + 2], value
end
