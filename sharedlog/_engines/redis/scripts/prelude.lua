-- What every script begins with but open.lua. All keys of a log share a hash tag, so a slot.
--
-- KEYS: 1 the head, a hash; 2 the entries, a stream whose ids are LSN-0; 3 the keys' values, a
-- hash; 4 the keys' names, a sorted set in the order of their bytes.
-- ARGV: 1 the log's id; 2 the highest step its caller has seen; 3 that step's mark, or ''.
--
-- Each commit makes a step, with or without entries: a log that has fewer than were seen went
-- back, and one whose step has another mark was written on from an older copy.
local head, entries, values, names = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local row = redis.call('HMGET', head, 'id', 'step', 'mark', 'tail', 'removed', 'at_us', 'terms')
if row[1] ~= ARGV[1] then return {'other'} end
local step, mark = tonumber(row[2]), row[3]
local tail, removed, at_us = tonumber(row[4]), tonumber(row[5]), tonumber(row[6])
if not (step and mark and tail and removed and at_us) then return {'damaged'} end
if step < tonumber(ARGV[2]) then return {'back', step} end
if step == tonumber(ARGV[2]) and ARGV[3] ~= '' and mark ~= ARGV[3] then return {'changed', step} end

local function text(number) return string.format('%.0f', number) end

-- Keys with a term have two fields of the head: when it is over by this server's clock, and how
-- long it was, microseconds. There are `terms` of them.
local terms = tonumber(row[7] or '0')
local function now_us()
  local now = redis.call('TIME')
  return tonumber(now[1]) * 1000000 + tonumber(now[2])
end
local function over(key)
  local ends = terms > 0 and redis.call('HGET', head, 'ends:' .. key)
  return ends and tonumber(ends) <= now_us()
end
local function value_of(key) return not over(key) and redis.call('HGET', values, key) end

-- What a reply begins with: a word, the step, its mark, the tail.
local function reply(word, ...) return {word, step, mark, tail, ...} end
